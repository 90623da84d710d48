"""What can be kept as it is, and the refusal of what cannot be kept at all."""

# Constants are shared, not copied: nobody can change them.
CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class NotStorable(Exception):
    """An output that cannot be kept and given again exactly; its text is the reason of a bypass."""
