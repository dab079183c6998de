"""The command line: one file a verb. The only place that prints or exits."""

from __future__ import annotations

import io
import os
import sys

import click

from nccltune import __version__
from nccltune.cli.compare import compare
from nccltune.cli.doctor import doctor
from nccltune.cli.export import export
from nccltune.cli.lint import lint
from nccltune.cli.retune import retune
from nccltune.cli.run import run
from nccltune.cli.search import search
from nccltune.cli.show import show
from nccltune.cli.speaking import let_go_of_stdout, readers_may_leave, say
from nccltune.cli.verify import verify
from nccltune.errors import COMPLAINT, Interrupted, NccltuneError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="nccltune")
def app() -> None:
    """Find the NCCL, DDP and DataLoader settings that make a training job fastest on this machine,
    by running it.
    """


app.add_command(compare)
app.add_command(doctor)
app.add_command(export)
app.add_command(lint)
app.add_command(retune)
app.add_command(run)
app.add_command(search)
app.add_command(show)
app.add_command(verify)


def main() -> None:
    """The console script. Messages go to stderr; exit codes are those of docs/design.md."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))
    sys.exit(_run())


def _run() -> int:
    try:
        # Not app.main(): that makes exit code 1 of a reader that has gone, as with `| head`.
        with app.make_context("nccltune", sys.argv[1:]) as context:
            code = app.invoke(context)
        with readers_may_leave():
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        _show(error)
        return 2
    except Interrupted as error:
        say(f"nccltune: {error}")
        return error.exit_code
    except NccltuneError as error:
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("nccltune: interrupted")
        return 130
    except BrokenPipeError:
        let_go_of_stdout()
        return 0
    except OSError as error:  # a full disk, a folder in place of a file
        where = f"{error.filename}: " if error.filename else ""
        kept = "; finished trials are kept" if sys.argv[1:2] == ["search"] else ""
        _complain(f"cannot go on: {where}{error.strerror or error}{kept}")
        return 1


def _show(error: click.ClickException) -> None:
    """As click does it, but harmless to a terminal: it quotes what was given."""
    text = io.StringIO()
    error.show(text)
    say(text.getvalue().rstrip("\n"))


def _complain(text: str) -> None:
    say(f"{COMPLAINT}{text}")
