"""Optuna, which logs each study that it makes on stderr unless it is told not to.

Whatever makes or opens one takes it from here.
"""

import optuna

optuna.logging.set_verbosity(optuna.logging.WARNING)

__all__ = ["optuna"]
