"""What can go wrong in a way the user can mend. Every message says what, where and what to do."""


class SosnError(Exception):
    """Base of all errors that sosn raises on purpose; the command line prints its message and exits with 1."""


class SosnWarning(UserWarning):
    """Something a user should know that does not stop the work; the command line prints it as a note."""


class UsageError(SosnError, ValueError):
    """An argument, option or recipe key that makes no sense; the command line exits with 2."""


class DataError(SosnError):
    """Images, folders or classes that cannot be used."""


class CheckpointError(SosnError):
    """Saved weights that are missing, damaged or of another architecture."""


class TrainingError(SosnError):
    """Training that cannot go on, for example after a loss of NaN."""


class UntrainedError(SosnError):
    """A learnt method that was never trained, asked for answers it could only guess."""


class MissingSplitError(DataError):
    """A dataset that has no train, val or test part."""


class TooFewError(DataError):
    """Classes or images that are too few for the episodes that are wanted."""


class NotFittedError(SosnError, ValueError, AttributeError):
    """A classifier asked for answers before it was shown any class; a ValueError and AttributeError as scikit-learn's is."""
