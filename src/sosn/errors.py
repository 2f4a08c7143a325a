"""Errors that a user can fix. Every message says what is wrong, where, and what to do."""


class SosnError(Exception):
    """Base class of all errors that sosn raises; the command line prints the message and exits with 1."""


class SosnWarning(UserWarning):
    """Base class of all warnings; the command line prints the message as a note and goes on."""


class UsageError(SosnError, ValueError):
    """An invalid argument, option or recipe key; the command line exits with 2."""


class DataError(SosnError):
    """Images, folders or classes that cannot be used."""


class CheckpointError(SosnError):
    """Saved weights that are missing, damaged or from another architecture."""


class TrainingError(SosnError):
    """Training that cannot continue, for example because the loss is NaN."""


class UntrainedError(SosnError):
    """A prediction was requested from a method that has not been trained."""


class MissingSplitError(DataError):
    """A dataset without the requested train, val or test split."""


class TooFewError(DataError):
    """Too few classes or images for the requested episodes."""


class NotFittedError(SosnError, ValueError, AttributeError):
    """A classifier was used before fit. Also a ValueError and an AttributeError, as in scikit-learn."""
