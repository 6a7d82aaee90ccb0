"""What is raised, or warned of, when an argument cannot be used. Imports nothing."""


class InputError(ValueError):
    """An argument cannot be used; the message says which, why and what to do."""


class DrawsWarning(UserWarning):
    """The labels of a batch can use up the draws that it is chosen by; the message has figures."""
