"""What can go wrong, by whose doing. The command line makes a message and an exit code of it."""

from __future__ import annotations

COMPLAINT = "nccltune: error: "
"""Before the message of one that ends the command."""


class NccltuneError(Exception):
    """Anything nccltune raises on purpose; its text is the whole message for the user."""

    exit_code = 1


class UsageError(NccltuneError):
    """The user's mistake: nothing was started and nothing was lost."""

    exit_code = 2


class StudyError(NccltuneError):
    """The study cannot go on, for instance because the baseline itself fails."""

    exit_code = 1


class Interrupted(NccltuneError):
    """The user asked to stop (SIGINT or SIGTERM); what was finished is saved."""

    exit_code = 130


class Busy(NccltuneError):
    """Others use the GPUs, and the user asked not to be in their way: try again later."""

    exit_code = 75
