"""What is raised when an argument cannot be used. Imports nothing: everything may import it."""


class InputError(ValueError):
    """An argument cannot be used; the message says which, why and what to do."""
