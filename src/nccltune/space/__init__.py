"""What may be tried: the search space as a file states it, and as it is on this machine."""

from nccltune.space.configuration import Split, canonical, changes, key, split, violation
from nccltune.space.loading import builtin_folder, builtin_names, load, load_fragments
from nccltune.space.model import Fragment, Parameter, Preset, Space
from nccltune.space.resolve import Facts, Note, ResolvedSpace, Selection, resolve
from nccltune.space.scalars import Value

__all__ = [
    "Facts",
    "Fragment",
    "Note",
    "Parameter",
    "Preset",
    "ResolvedSpace",
    "Selection",
    "Space",
    "Split",
    "Value",
    "builtin_folder",
    "builtin_names",
    "canonical",
    "changes",
    "key",
    "load",
    "load_fragments",
    "resolve",
    "split",
    "violation",
]
