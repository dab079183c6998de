"""Samplers: what configuration is tried next."""
