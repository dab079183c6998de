"""What is written for people and jobs: env and argument files, lines and tables."""
