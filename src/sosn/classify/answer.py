"""What a classifier says about an image."""

from dataclasses import dataclass, field

from sosn.classify.support import Label


@dataclass(frozen=True)
class Nearest:
    """The support image that is nearest to a query."""

    label: Label
    index: int  # its position among all images given to fit and partial_fit, from 0
    source: str | None  # its path, if it came from a file
    similarity: float
    image: str | None = None  # path of the query, if it came from a file


@dataclass(frozen=True)
class Answer:
    """The answer for an image and the scores of all classes. An answer of None means none of these."""

    answer: Label | None
    probability: float  # of the most likely class
    similarities: dict[Label, float]
    probabilities: dict[Label, float]
    image: str | None = None  # its path, if it came from a file
    far: bool = False  # whether it is less similar to its class than 99% of known images, so it may be none of these

    @property
    def likeliest(self) -> Label:
        """The most likely class, even if the answer is None."""
        return max(self.probabilities, key=self.probabilities.__getitem__)


@dataclass(frozen=True)
class Explanation(Answer):
    """An answer and the nearest support image."""

    nearest: Nearest = field(kw_only=True)
