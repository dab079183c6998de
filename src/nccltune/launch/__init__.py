"""How ranks start and end: the launch plan, the torchrun launcher, supervision."""
