"""The search and its record. The only package that imports Optuna."""
