"""Exports of a model as a program: a file of ONNX or of `torch.export`, which is run before it is kept.

The program has the weights, a batch of any size, and on request the normalization of the training. It is
compared with the model on every batch of the test split, or of the valid split without one.
"""

import io
import json
import logging
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages import data, learner, loggers
from stages.contracts.errors import StageError
from stages.contracts.plugins import load_extra
from stages.data.datasets import Samples
from stages.devices.rng import preserve_random_state
from stages.learner.from_params import build_output_metrics, build_test_loader, compute_settings
from stages.params.fit_params import FitConfig
from stages.renderers import NoRenderer
from stages.system.files import open_atomic

OUTPUT_TOLERANCE = 1e-4
"""The largest difference of an output, absolute and relative."""
METRIC_TOLERANCE = 1e-5
"""The largest difference of a metric, absolute and relative."""
Program = Callable[..., Any]
"""A loaded program: a function of the tensors that the model is called with."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained model, and the run that it belongs to."""

    model: Any
    fit: FitConfig
    directory: Path
    """The prepared data."""
    allowed: Collection[str] = ()
    """The import paths of datasets that are read when their samples are needed, whose code is run."""
    recorded: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By split, the metrics that the run has recorded, if a program must reach them."""

    @property
    def info(self) -> data.DatasetInfo:
        """The description of the prepared data."""
        return data.read_info(self.directory / data.DATASET_FILE)


def export_program(kind: str, run: TrainedRun, path: Path, *, preprocess: bool) -> None:
    """Write the model of *run* to *path* as a program of *kind*, ``onnx`` or ``pt2``, and verify it.

    With *preprocess* the inputs of the program are those of the batches before the normalization, as float32.

    Raises `StageError` if the model cannot be exported, if an output differs by more than 1e-4, or a metric
    by more than 1e-5, from those of the model or of the run; *path* is then not written. Raises
    `PluginError` if a package is not installed.
    """
    model = run.model.cpu().eval()
    exported = Preprocessed.of(run) if preprocess else model
    info = run.info.model_copy(update={"normalization": _IDENTITY}) if preprocess else run.info
    split = next(name for name in ("test", "valid", "train") if name in info.counts)
    loader = build_test_loader(
        run.fit, data.read_split(run.directory, split, info, allowed=run.allowed), info
    )
    settings = compute_settings(run.fit.model_copy(update={"precision": "float32"}))
    title = f"save_model.exports: {kind}"
    place = f"{title}: {split} split"
    with preserve_random_state(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about its own calls
        traced = _trace(exported, *_record_arguments(model, loader), title)
        write, load = _FORMATS[kind]
        content = write(traced, title)
        program = load(content, run.fit.num_threads)

        def evaluate(forward: Callable[..., Any]) -> Mapping[str, float]:
            builder = learner.EvaluatorBuilder("").metrics(*build_output_metrics(run.fit)).compute(settings)
            builder.renderer(NoRenderer()).metric_logger(loggers.InMemoryMetricLogger()).device("cpu")
            with _replace_forward(model, forward):
                return builder.build(model).eval("export", loader)

        expected = evaluate(exported.forward)
        actual = evaluate(_Comparison(exported.forward, program, place))
    _check_metrics(place, actual, expected, "with the model", "change its operations")
    recorded = run.recorded.get(split, {})
    _check_metrics(place, actual, recorded, "in the records of the run", "run fit again")
    with open_atomic(path) as file:
        file.write(content)


_IDENTITY = data.Normalization(mean=0.0, std=1.0)


class Preprocessed(nn.Module):
    """A model with the normalization of its training, for inputs of the source as float32."""

    def __init__(self, model: nn.Module, normalization: data.Normalization) -> None:
        super().__init__()
        self.model = model
        self._forward = model.forward  # another function takes its place while the model is evaluated
        self.batcher = data.NormalizeBatcher(normalization.mean, normalization.std)

    @classmethod
    def of(cls, run: TrainedRun) -> "Preprocessed":
        """Return the model of *run*. Raises `StageError` if its batcher does not only normalize."""
        scaling = run.info.scaling
        if run.fit.batcher.kind != "normalize" or not isinstance(scaling, data.Normalization):
            raise StageError(
                "save_model.preprocess: a program can only normalize inputs that are one tensor of numbers; "
                f"found fit.batcher: {run.fit.batcher.kind}, and inputs of {run.info.input_dtype}. Set it to "
                "false"
            )
        return cls(run.model, scaling)

    def forward(self, inputs: Tensor) -> Any:
        """Return the output of the model for *inputs* (N, …) that are not normalized."""
        return self._forward(self.batcher.batch(Samples(inputs, inputs)).inputs)


def _record_arguments(model: Any, loader: Any) -> tuple[tuple[Tensor, ...], set[tuple[torch.Size, ...]]]:
    """Return the tensors of the first call of *model* in ``valid_step``, and the shapes of all calls."""
    first: list[Any] = []
    shapes: set[tuple[torch.Size, ...]] = set()
    forward = model.forward

    def record(*arguments: Any) -> Any:
        if not shapes:
            first.extend(arguments)
        shapes.add(tuple(argument.shape for argument in arguments if isinstance(argument, Tensor)))
        return forward(*arguments)

    with _replace_forward(model, record):
        for batch in loader:
            model.valid_step(batch)
    if not shapes:
        raise StageError(
            f"save_model.exports: {type(model).__name__}.valid_step does not call the model itself, so that "
            "there is no function to export. Compute its output in forward"
        )
    if others := [type(value).__name__ for value in first if not isinstance(value, Tensor)]:
        raise StageError(
            f"save_model.exports: {type(model).__name__}.valid_step calls the model with a {others[0]}, and "
            "the arguments of a program are tensors. Pass the tensors one by one"
        )
    return tuple(first), shapes


@contextmanager
def _replace_forward(model: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Have calls of *model* call *function* in the block."""
    model.forward = function
    try:
        yield
    finally:
        del model.forward


def _trace(
    model: nn.Module, arguments: tuple[Tensor, ...], shapes: Collection[tuple[torch.Size, ...]], title: str
) -> Any:
    """Return *model* as a program of torch, without the paths of the code.

    The first axis of each argument is that of the samples. Another axis is of any length too if it has two
    lengths in *shapes*.
    """
    # torch takes a length of 1 for a constant, and cannot decompose a program of rows with gaps in memory
    example = tuple(
        (tensor if len(tensor) > 1 else tensor.expand(2, *tensor.shape[1:])).contiguous()
        for tensor in arguments
    )
    dynamic_shapes = tuple(
        {0: torch.export.Dim.DYNAMIC, **_varying_axes(of_argument)}
        for of_argument in zip(*shapes, strict=True)
    )
    try:
        traced: Any = torch.export.export(model, example, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise StageError(f"{title}: torch.export cannot trace the model: {_first_line(error)}") from error
    for module in traced.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return traced


def _varying_axes(shapes: Sequence[torch.Size]) -> dict[int, Any]:
    lengths = zip(*shapes, strict=True)
    return {axis: torch.export.Dim.DYNAMIC for axis, sizes in enumerate(lengths) if len(set(sizes)) > 1}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    operator = [line for line in lines if "OpOverload" in line or "aten" in line]
    return (operator or lines or [repr(error)])[0]


@dataclass
class _Comparison:
    """A program in place of a forward pass, whose output is compared with that of the pass."""

    forward: Callable[..., Any]
    program: Program
    title: str
    batch: int = 0

    def __call__(self, *arguments: Tensor) -> Any:
        expected, self.batch = self.forward(*arguments), self.batch + 1
        outputs = self.program(*arguments)
        is_single = isinstance(expected, Tensor)
        tolerance = OUTPUT_TOLERANCE
        for output, tensor in zip(outputs, [expected] if is_single else expected, strict=True):
            if not torch.allclose(output, tensor, rtol=tolerance, atol=tolerance, equal_nan=True):
                difference = float((output.double() - tensor.double()).abs().max())
                raise StageError(
                    f"{self.title}, batch {self.batch}: an output of the program differs from that of the "
                    f"model by {difference:.3g}; at most {tolerance} is allowed. Remove the export, or "
                    "change the operations of the model"
                )
        return outputs[0] if is_single else tuple(outputs)


def _check_metrics(
    title: str, actual: Mapping[str, float], expected: Mapping[str, float], origin: str, remedy: str
) -> None:
    """Raise `StageError` if a metric that both have differs by more than `METRIC_TOLERANCE`."""
    for name in sorted(actual.keys() & expected.keys()):
        is_close = math.isclose(
            actual[name], expected[name], rel_tol=METRIC_TOLERANCE, abs_tol=METRIC_TOLERANCE
        )
        if not is_close and not (math.isnan(actual[name]) and math.isnan(expected[name])):
            raise StageError(
                f"{title}: {name} is {actual[name]!r} with the program, and {expected[name]!r} {origin}. "
                f"Remove the export, or {remedy}"
            )


def _write_onnx(traced: Any, title: str) -> bytes:
    """Return the program as a file of ONNX, without paths of the code and the build of torch."""
    for package in ("onnx", "onnxscript"):
        load_extra(package, "onnx", title)
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it lists packages that it could use
    try:
        model = torch.onnx.export(traced, dynamo=True, verbose=False).model_proto  # type: ignore[union-attr]
    except Exception as error:
        raise StageError(f"{title}: the model cannot be exported: {_first_line(error)}") from error
    finally:
        log.setLevel(level)
    model.producer_version = torch.__version__.partition("+")[0]
    nodes = (node for function in model.functions for node in function.node)
    for owner in (model, model.graph, *model.graph.node, *model.functions, *nodes):
        owner.ClearField("metadata_props")
    return bytes(model.SerializeToString(deterministic=True))


def _load_onnx(content: bytes, num_threads: int | None) -> Program:
    runtime = load_extra("onnxruntime", "onnx", "save_model.exports: onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads or 0
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*arguments: Tensor) -> list[Tensor]:
        values = (tensor.detach().numpy() for tensor in arguments)
        return [torch.from_numpy(out) for out in session.run(None, dict(zip(names, values, strict=True)))]

    return run


def _write_pt2(traced: Any, _: str) -> bytes:
    """Return the program as `torch.export.save` writes it, without samples and the build of torch."""
    arguments, options = traced.example_inputs
    traced.example_inputs = (tuple(map(torch.zeros_like, arguments)), options)  # no samples of the user
    buffer, written = io.BytesIO(), io.BytesIO()
    torch.export.save(traced, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(written, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("models/model.json"):
                version = {"torch_version": torch.__version__.partition("+")[0]}
                content = json.dumps(json.loads(content) | version).encode()
            target.writestr(zipfile.ZipInfo(entry.filename), content)
    return written.getvalue()


def _load_pt2(content: bytes, _: int | None) -> Program:
    module = torch.export.load(io.BytesIO(content)).module()

    def run(*arguments: Tensor) -> list[Any]:
        output = module(*arguments)
        return [output] if isinstance(output, Tensor) else list(output)

    return run


_FORMATS: dict[str, tuple[Any, Any]] = {
    "onnx": (_write_onnx, _load_onnx),
    "pt2": (_write_pt2, _load_pt2),
}
"""The functions that write and load a program, by the kind of its file."""
