"""What is wrong with something that came from outside."""


class InputError(ValueError):
    """A file, an option or an argument at fault: the message says which, what was found and what is allowed.

    The console script turns it into one line and exit code 2. Any other error is a fault of this package, and shows
    where it happened.
    """
