"""The one exception class that stands for bad input."""


class InputError(ValueError):
    """Something the user gave is wrong: a flag, a file, a value in a file, an environment.

    The message is one line that says what is wrong, where, the value received and the remedy. The program prints it
    without a traceback and exits with code 2. Anything else that is raised is a bug of ours and shows its trace.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(str(message).split()))
