"""Everything that runs where torch is.

This package needs torch and the standard library alone and imports nothing else of nccltune: it is
copied to the PYTHONPATH of the job's own Python, where the rest of nccltune is not installed.
"""
