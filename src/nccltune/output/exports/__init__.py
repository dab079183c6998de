"""A result in the words of other programs: a format each, from a value to text and notes."""
