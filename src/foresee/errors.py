"""What is raised, or warned of, when an argument cannot be used. Imports nothing."""


class InputError(ValueError):
    """An argument cannot be used; the message says which, why and what to do."""


class DrawsWarning(UserWarning):
    """A batch is larger than the draws can tell apart; the message says what to do."""
