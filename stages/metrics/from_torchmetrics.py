"""Metrics of torchmetrics: an adapter for any of them, and Burn's metrics that are taken from there.

All need torchmetrics, which the extra ``metrics`` installs.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from stages.contracts.errors import BuilderError
from stages.contracts.history import Direction
from stages.contracts.outputs import (
    IGNORED_TARGET,
    ClassificationOutput,
    DetectionOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
    is_counted,
)
from stages.contracts.plugins import load_extra
from stages.contracts.text import number
from stages.metrics.class_targets import predict_classes, widen
from stages.metrics.state import Chunks
from stages.metrics.text import predict_tokens, trim_rows

if TYPE_CHECKING:
    from torchmetrics import Metric


def predictions_and_targets(output: Any) -> tuple[Any, ...]:
    """Return what most metrics of torchmetrics take: predictions and targets.

    The predictions of a classification are probabilities, (B,) for a single logit: from logits torchmetrics
    would guess batch by batch, by their range, whether they are probabilities.
    """
    match output:
        case DetectionOutput():
            return output.predictions, output.targets
        case SequenceOutput():
            return widen(output.logits), output.targets
        case RegressionOutput():
            return widen(output.output), output.targets
        case MultiLabelClassificationOutput():
            return widen(output.output).sigmoid(), output.targets
        case ClassificationOutput() if output.output.ndim == 1 or output.output.shape[1] == 1:
            targets = output.targets.reshape(-1) if output.targets.ndim == 2 else output.targets
            return widen(output.output).sigmoid().reshape(targets.shape), targets
        case ClassificationOutput():
            return widen(output.output).softmax(dim=1), output.targets
    return output.output, output.targets


@dataclass(frozen=True)
class TorchMetricState:
    """What a metric of torchmetrics has accumulated over an epoch."""

    owner: "TorchMetric"
    states: Mapping[str, Any]
    """A tensor, or `Chunks` of what torchmetrics keeps as a list, by name; empty without samples."""
    count: int
    """The number of samples."""

    def __add__(self, other: Self, /) -> Self:
        if not (self.count and other.count):
            return self if self.count else other
        joined = {
            name: self.owner.joins[name].function(state, other.states[name])
            for name, state in self.states.items()
        }
        return replace(self, states=joined, count=self.count + other.count)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of torchmetrics by name, and the number of samples."""
        states = {
            name: list(state) if isinstance(state, Chunks) else state for name, state in self.states.items()
        }
        return {"states": states, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> Self:
        """Return the accumulated values of *state*, for the metric of this value."""
        states = {
            name: Chunks((tuple(value),) if value else ()) if isinstance(value, list) else value
            for name, value in state["states"].items()
        }
        if states and set(states) != set(self.owner.joins):
            expected = ", ".join(sorted(self.owner.joins))
            raise ValueError(f"found the states {', '.join(sorted(states))}, expected {expected}")
        return replace(self, states=states, count=state["count"])

    @property
    def value(self) -> float:
        """The number that torchmetrics computes; NaN without samples."""
        return self.owner.compute(self) if self.count else float("nan")


@dataclass(eq=False)
class TorchMetric:
    """A metric of torchmetrics whose states add, as torchmetrics adds those of several processes.

        TorchMetric(torchmetrics.classification.MulticlassF1Score(num_classes=10), scale=100.0, unit="%")

    A metric whose ``ignore_index`` is None gets -100. Most metrics leave such targets out; those of exact
    matches count them as correct, and those of rankings as labels with the lowest score.

    Raises `BuilderError` for a metric whose states cannot be joined exactly.
    """

    metric: "Metric"
    name: str = ""
    """The name in logs; if empty, that of the metric's class."""
    unit: str | None = None
    decimals: int = 2
    scale: float = 1.0
    """A factor of the value: 100 converts a fraction to percent."""
    key: str | None = None
    """The number to report, of a metric that computes several by name."""
    inputs: Callable[[Any], tuple[Any, ...]] = predictions_and_targets
    """Converts a step's output to the arguments of the metric's ``update``."""
    measures: type | tuple[type, ...] = object
    """The type of output that *inputs* takes, or a tuple of types."""
    adjust: "Callable[[Metric], None] | None" = None
    """Replaces states of the metric before its value is computed, for example by smoothed ones."""
    joins: "Mapping[str, Join]" = field(init=False, repr=False)
    """How each state of two batches is joined."""

    def __post_init__(self) -> None:
        # before anything else fails
        torchmetrics = load_extra("torchmetrics", "metrics", type(self).__name__)
        self.name = self.name or type(self.metric).__name__
        self.metric = self.metric.clone()
        self.joins = _joins_of(self.metric, torchmetrics)
        if getattr(self.metric, "ignore_index", IGNORED_TARGET) is None:
            self.metric.ignore_index = IGNORED_TARGET
        module: Any
        for module in self.metric.modules():
            # the ranks add the values, so torchmetrics must not wait for them
            module.distributed_available_fn = _is_never_distributed
        self.metric.compute_with_cache = False

    @property
    def better(self) -> Direction | None:
        """The direction that torchmetrics declares; None if it declares none."""
        higher = self.metric.higher_is_better
        return None if higher is None else (Direction.LOWEST, Direction.HIGHEST)[higher]

    def measure(self, output: Any) -> TorchMetricState:
        """Return the states of one batch. Raises `BuilderError` if the metric does not take *output*.

        A batch without a counted target has none: not every metric of torchmetrics takes an empty tensor.
        """
        if not output.size or _are_ignored(output):
            return TorchMetricState(self, {}, 0)
        if self.metric.device != output.loss.device:
            self.metric.to(output.loss.device)
        self.metric.reset()
        try:
            self._update(output)
        except (TypeError, ValueError) as error:
            raise BuilderError(
                f"metric {self.name!r} does not accept the output of the model's step: {error}. Pass inputs "
                "to TorchMetric to convert the output, or register another metric"
            ) from error
        states = {
            name: self._copy(name, state, output.size) for name, state in self.metric.metric_state.items()
        }
        return TorchMetricState(self, states, output.size)

    def compute(self, measured: TorchMetricState) -> float:
        """Return the value of *measured*; NaN if it is one sample, of which torchmetrics computes none.

        Raises `BuilderError` if it is not a single number.
        """
        for name, state in measured.states.items():
            if isinstance(state, Chunks):
                setattr(self.metric, name, list(state))
            else:
                setattr(self.metric, name, state / measured.count if self.joins[name].is_mean else state)
        if self.adjust is not None:
            self.adjust(self.metric)
        try:
            return self.scale * self._number(self.metric.compute())
        except ValueError:
            if measured.count > 1:
                raise
            return float("nan")  # one sample has no value of a metric such as R2

    @torch.no_grad()
    def _update(self, output: Any) -> None:
        inputs = (value.detach() if isinstance(value, Tensor) else value for value in self.inputs(output))
        self.metric.update(*inputs)

    def _number(self, computed: Any) -> float:
        value = computed.get(self.key, computed) if isinstance(computed, dict) else computed
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.item()
        description = ", ".join(value) if isinstance(value, dict) else f"a {type(value).__name__}"
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise BuilderError(
            f"metric {self.name!r} computes no single number but {description}{shape}: "
            "set its average, or select one by its key with TorchMetric(…, key=…)"
        )

    def _copy(self, name: str, state: Any, size: int) -> Any:
        if isinstance(state, list):  # of views of the output, which a captured graph overwrites
            copies = tuple(chunk.clone() if isinstance(chunk, Tensor) else chunk for chunk in state)
            return Chunks((copies,)) if copies else Chunks()
        is_sum = self.joins[name].function is torch.add
        if is_sum and state.is_floating_point() and state.device.type != "mps":
            state = state.double()  # in float32 a long sum rounds away what a batch adds
        return state * size if self.joins[name].is_mean else state


def _are_ignored(output: Any) -> bool:
    """Return whether all targets of *output*, which is of classes, are -100; False on an accelerator."""
    is_of_classes = isinstance(output, ClassificationOutput | SequenceOutput)
    return is_of_classes and output.targets.is_cpu and not is_counted(output.targets).any()


def _is_never_distributed() -> bool:
    """Return False: a function, since a metric that is pickled cannot have a lambda."""
    return False


class Join(NamedTuple):
    """How the state of two batches is joined, as torchmetrics joins that of two processes."""

    function: Callable[[Any, Any], Any]
    is_mean: bool = False
    """True for a mean, which is kept as the sum over samples until its value is read."""


def _joins_of(metric: "Metric", torchmetrics: Any) -> dict[str, Join]:
    """Return how each state of *metric* is joined. Raises `BuilderError` if one cannot be joined."""
    name, utilities = type(metric).__name__, torchmetrics.utilities
    of_tensors = {
        utilities.dim_zero_sum: Join(torch.add),
        utilities.dim_zero_mean: Join(torch.add, is_mean=True),
        utilities.dim_zero_max: Join(torch.maximum),
        utilities.dim_zero_min: Join(torch.minimum),
    }
    of_lists = dict.fromkeys((utilities.dim_zero_cat, None), Join(add))
    reductions = vars(metric)["_reductions"]  # torchmetrics has no public name for this
    if not reductions or any(isinstance(child, torchmetrics.Metric) for child in metric.children()):
        raise BuilderError(
            f"metric {name!r} has no states itself, so the batches of an epoch cannot be added: "
            "compute it after training"
        )
    joins: dict[str, Join] = {}
    for state, reduction in reductions.items():
        supported = of_lists if isinstance(metric.metric_state[state], list) else of_tensors
        if reduction not in supported:
            raise BuilderError(
                f"metric {name!r} has a state {state!r} that cannot be joined from two batches "
                f"(its dist_reduce_fx is {getattr(reduction, '__name__', reduction)}): compute it after "
                "training"
            )
        joins[state] = supported[reduction]
    return joins


def to_sentences(pad_token: int | None, output: SequenceOutput) -> tuple[Any, ...]:
    """Return the predicted sentences, one number per token, and for each a list with its one reference.

    A sequence ends before the first *pad_token*; None if no sequence is padded. -100 is not a token. Blocks
    on the device.
    """
    predictions, references = (
        [" ".join(map(str, row)) for row in trim_rows(tokens, pad_token)]
        for tokens in (predict_tokens(output), output.targets)
    )
    return predictions, [[reference] for reference in references]


def predict_pixel_classes(output: ClassificationOutput) -> tuple[Any, ...]:
    """Return the predicted class and the target of each pixel that counts, (1, N).

    The logits are (B, C, H, W), and the targets (B, H, W); a target of -100 is ignored. A single logit above
    0 predicts class 1. A pixel whose logits contain NaN predicts a class that is not its target.
    """
    predictions, masks = predict_classes(output, "dice and mean_iou")
    counted = is_counted(masks)
    predicted, targets = predictions[counted], masks[counted].long()
    classes = 2 if output.output.ndim == 1 else max(output.output.shape[1], 2)
    return predicted.where(predicted >= 0, (targets + 1) % classes)[None], targets[None]


def smooth_bleu(epsilon: float | None, metric: Any) -> None:
    """Replace the count of each order of n-grams without a match in *metric*, a BLEU of torchmetrics.

    The count is *epsilon*, as in method 1 of Chen and Cherry, 2014; None for 1/2, 1/4, … in the order of such
    n-grams, as in method 3. Orders without n-grams remain.
    """
    counts, divisor = metric.numerator.tolist(), 1.0
    for order, total in enumerate(metric.denominator.tolist()):
        if total and not counts[order]:
            divisor *= 2
            counts[order] = 1 / divisor if epsilon is None else epsilon
    metric.numerator = metric.numerator.new_tensor(counts)


def bleu(
    n_gram: int = 4,
    pad_token: int | None = None,
    *,
    smooth: bool = False,
    smoothing: str = "none",
    epsilon: float = 0.1,
) -> TorchMetric:
    """Return BLEU of the epoch as one corpus, over token numbers. Burn 0.22 averages that of its batches.

    *smoothing* is Burn's: ``add_epsilon`` counts *epsilon* for an order of n-grams without a match, and
    ``exponential`` halves it for each further one; see `smooth_bleu`. *smooth* is that of torchmetrics,
    which adds 1 to the counts of all orders above the first. Raises `BuilderError` for another smoothing.
    """
    adjust = {
        "none": None,
        "add_epsilon": partial(smooth_bleu, epsilon),
        "exponential": partial(smooth_bleu, None),
    }
    if smoothing not in adjust:
        raise BuilderError(f"bleu takes the smoothing {', '.join(adjust)}, not {smoothing!r}")
    metric = _load_part("text", "bleu").BLEUScore(n_gram=n_gram, smooth=smooth)
    return _measure_sentences(metric, f"BLEU-{n_gram}", pad_token, adjust=adjust[smoothing])


def rouge_l(pad_token: int | None = None) -> TorchMetric:
    """Return the mean F score of the longest common subsequence, over token numbers."""
    metric = _load_part("text", "rouge_l").ROUGEScore(
        rouge_keys="rougeL", normalizer=str, tokenizer=str.split
    )
    return _measure_sentences(metric, "ROUGE-L", pad_token, key="rougeL_fmeasure")


def _measure_sentences(metric: Any, name: str, pad_token: int | None, **options: Any) -> TorchMetric:
    inputs = partial(to_sentences, pad_token)
    return TorchMetric(metric, name, "%", scale=100.0, inputs=inputs, measures=SequenceOutput, **options)


def dice(num_classes: int, *, include_background: bool = False) -> TorchMetric:
    """Return the overlap of all classes together over the epoch; class 0 is the background."""
    segmentation = _load_part("segmentation", "dice")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the default "micro" will change
        metric = segmentation.DiceScore(
            num_classes,
            include_background=include_background,
            average="micro",
            aggregation_level="global",
            input_format="index",
        )
    return TorchMetric(
        metric, "2D Dice Metric", decimals=4, inputs=predict_pixel_classes, measures=ClassificationOutput
    )


def mean_iou(num_classes: int) -> TorchMetric:
    """Return the mean over classes of intersection over union, of all pixels of the epoch together.

    It is the Jaccard index of torchmetrics with the average ``macro``, which leaves classes out that neither
    the predictions nor the targets have. A target of -100 is ignored.
    """
    metric = _load_part("classification", "mean_iou").MulticlassJaccardIndex(num_classes=num_classes)
    return TorchMetric(
        metric, "Mean IoU", decimals=4, inputs=predict_pixel_classes, measures=ClassificationOutput
    )


def raise_errors(epsilon: float, metric: Any) -> None:
    """Raise the mean squared error of each image in *metric*, a PSNR of torchmetrics, to *epsilon*.

    A perfect image then has a finite PSNR.
    """
    pairs = zip(metric.sum_squared_error, metric.total, strict=True)
    metric.sum_squared_error = [error.clamp(min=epsilon * size) for error, size in pairs]


def psnr(max_pixel: float = 1.0, *, epsilon: float = 0.0) -> TorchMetric:
    """Return the mean peak signal-to-noise ratio of images (B, C, H, W), in dB.

    A smaller mean squared error than *epsilon* counts as *epsilon*: Burn's default is 1e-10, with which a
    perfect image has 100 dB at a *max_pixel* of 1. With 0, the default, it is infinite.
    """
    metric = _load_part("image", "psnr").PeakSignalNoiseRatio(
        data_range=float(max_pixel), dim=(1, 2, 3), reduction="elementwise_mean"
    )
    adjust = partial(raise_errors, epsilon) if epsilon else None
    return TorchMetric(metric, f"PSNR@{number(max_pixel)}", "dB", measures=RegressionOutput, adjust=adjust)


def ssim(data_range: float = 1.0, sigma: float = 1.5, *, k1: float = 0.01, k2: float = 0.03) -> TorchMetric:
    """Return the mean structural similarity of images (B, C, H, W). Wang et al., 2004.

    *sigma* is that of the window in pixels, and *k1* and *k2* stabilize the comparison of luminance and
    contrast. The windows are those within the image; Burn pads it with zeros.
    """
    build = _load_part("image", "ssim").StructuralSimilarityIndexMeasure
    return _build_similarity(build, "SSIM (dr={}, w={}, σ={})", data_range, sigma, k1=k1, k2=k2)


def ms_ssim(
    data_range: float = 1.0,
    sigma: float = 1.5,
    *,
    k1: float = 0.01,
    k2: float = 0.03,
    betas: Sequence[float] = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333),
) -> TorchMetric:
    """Return `ssim` at several scales, each of which has a weight in *betas*. Wang et al., 2003.

    At σ 1.5 and five scales height and width must be 176 pixels or more. Burn mirrors the image at its edges.
    """
    build = _load_part("image", "ms_ssim").MultiScaleStructuralSimilarityIndexMeasure
    return _build_similarity(
        build, "MS-SSIM (pr={}, k={}, σ={})", data_range, sigma, k1=k1, k2=k2, betas=tuple(betas)
    )


def _build_similarity(build: Any, name: str, data_range: float, sigma: float, **options: Any) -> TorchMetric:
    """Return the metric of the class *build*, with the range, the width of the window and σ in its *name*."""
    window = int(3.5 * sigma + 0.5) * 2 + 1  # of torchmetrics, in pixels
    title = name.format(number(data_range), window, number(sigma))
    metric = build(sigma=sigma, data_range=float(data_range), **options)
    return TorchMetric(metric, title, decimals=4, measures=RegressionOutput)


def _load_part(part: str, kind: str) -> Any:
    return load_extra(f"torchmetrics.{part}", "metrics", f"metric {kind!r}")
