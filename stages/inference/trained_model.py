"""A trained model as a module, with the preprocessing of its training."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict, ValidationError
from torch import Tensor, nn

from stages import data, records
from stages.contracts.config import Config
from stages.contracts.errors import BuilderError, CheckpointError, DataError, PluginError
from stages.contracts.outputs import IGNORED_TARGET, SequenceOutput
from stages.contracts.placement import move
from stages.contracts.plugins import load_extra
from stages.data.config import BATCHERS
from stages.data.datasets import Samples, to_tensor
from stages.data.sources.texts import ByteEncoder, TokenEncoder, encode_texts
from stages.data.trees import Ragged, count_rows, flatten, shorten, take, unflatten
from stages.devices import find_device
from stages.devices.rng import preserve_random_state
from stages.learner import LearnerSpec, load_weights, use_average
from stages.optim.mixed_precision import MixedPrecision
from stages.params.fit_params import FitConfig
from stages.params.save_model_params import SaveModelConfig
from stages.runs import FileCheckpointer
from stages.runs.file_names import CHECKPOINT_FOLDER, parse_name
from stages.runs.layout import KEY_FILE
from stages.system.files import read_json, read_regular

CONFIG_FILE, LEARNER_FOLDER, EXPORTS_FOLDER = "config.json", "learner", "exports"
"""Names in an artifact directory."""
MANIFEST = "manifest.json"
"""The epoch of the exported weights, and size and sha256 of each export; without exports, the only file."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for *N* samples, on the CPU."""

    outputs: Tensor
    """The output of the model, (N, …): logits of classes or of several labels, or numbers.

    Of sequences of different lengths, the positions after the longest one of a batch are NaN.
    """
    probabilities: Tensor | None = None
    """The probability of each class, (N, C) or (N, …, C); None for regression and for several labels."""
    classes: Tensor | None = None
    """The class of the largest logit, or 1 if a single logit is above 0, (N,) or (N, …), int64, and -100 at
    positions that are NaN; None for regression."""
    class_names: tuple[str, ...] | None = None
    """The names of the classes; None if the data has no names."""

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def labels(self) -> list[Any]:
        """The name of the class of each sample, its number if classes have no names, or the output."""
        if self.classes is None:
            return list(self.outputs.tolist())
        numbers: list[Any] = self.classes.tolist()
        return numbers if self.classes.ndim > 1 else [self.name_class(number) for number in numbers]

    def name_class(self, number: int) -> Any:
        """Return the name of the class *number*, or the number if it has no name."""
        names = self.class_names or ()
        return names[number] if number < len(names) else number


class Preprocessing(nn.Module):
    """The tokenizer and the batcher of a run, as a module from samples to the inputs of its model."""

    def __init__(self, info: data.DatasetInfo, batcher: Any) -> None:
        super().__init__()
        self.info = info
        self.batcher = batcher

    def forward(self, samples: Any) -> Tensor:
        """Return the inputs of the model for *samples*, the first element of their batch."""
        inputs: Tensor = self.build_batch(samples)[0]
        return inputs

    def build_batch(self, samples: Any) -> Any:
        """Return the batch of *samples*, as the source reads them, with targets of 0.

        *samples* is a tensor or an array (N, …), a list of such samples, or a list of texts if the data are
        texts; a tuple or a dict of such for several inputs. Raises `DataError` if they do not have the shape
        of a sample of the training data.
        """
        info = self.info
        dtypes: Any = info.input_dtype
        if isinstance(info.input_shape, dict):
            leaves = {shorten(name): leaf for name, leaf in flatten(samples, "inputs").items()}
            if set(leaves) != set(info.input_shape):
                raise DataError(
                    f"a sample has the inputs {', '.join(info.input_shape)}; found {', '.join(leaves)}. Pass "
                    "a dict with these names"
                )
            stored = {
                f"inputs.{name}": self._to_tensor(leaf, info.input_shape[name], dtypes[name])
                for name, leaf in leaves.items()
            }
        else:
            stored = {"inputs": self._to_tensor(samples, info.input_shape, dtypes)}
        inputs = unflatten(stored, "inputs")
        return self.batcher.batch(Samples(inputs, self._build_targets(count_rows(inputs))))

    def _build_targets(self, count: int) -> Any:
        """Return *count* targets of 0; of ragged targets, no rows."""
        shapes, classes = self.info.target_shape, self.info.num_classes
        if not isinstance(shapes, dict):
            number = classes if isinstance(classes, int) else None
            return None if shapes is None else _build_zeros(count, shapes, number)
        named = classes if isinstance(classes, dict) else {}
        leaves = {f"targets.{name}": _build_zeros(count, shapes[name], named.get(name)) for name in shapes}
        return unflatten(leaves, "targets")

    def _to_tensor(self, samples: Any, shape: tuple[int, ...], dtype: str) -> Tensor:
        tokenizer = self.info.tokenizer
        if tokenizer is not None and isinstance(next(iter(samples), None), str):
            samples = _encode(tokenizer, list(samples), shape[0])
        if isinstance(samples, list | tuple):
            samples = torch.stack([_as_tensor(sample) for sample in samples])
        stored = _as_tensor(samples)
        if tuple(stored.shape[1:]) != shape:
            raise DataError(
                f"a sample must have the shape {shape}, that of the training data; found samples "
                f"of the shape {tuple(stored.shape[1:])}. The first axis is that of the samples"
            )
        if stored.is_floating_point() and not dtype.startswith("float"):
            raise DataError(
                f"samples must have the values of the training data, which are {dtype}; found "
                f"{stored.dtype}. Pass them as the source reads them: they are normalized here"
            )
        return stored.float() if dtype == "float32" else stored  # as load-data has stored them


def _as_tensor(values: Any) -> Tensor:
    """Return *values* as a tensor, which has no other byte order than that of the machine."""
    if isinstance(values, np.ndarray):
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return to_tensor(values)


def _build_zeros(count: int, shape: tuple[int, ...], classes: int | None) -> Any:
    dtype = torch.float32 if classes is None else torch.int64
    if -1 in shape:
        return Ragged(torch.zeros((0, *shape[1:]), dtype=dtype, device="cpu"), np.zeros(count, np.int64))
    return torch.zeros((count, *shape), dtype=dtype, device="cpu")


class TrainedModel(nn.Module):
    """A model in eval mode, called with samples as the source of the training reads them.

    Calling it returns the output of ``model`` for the result of ``preprocessing``, with gradients. `predict`
    returns classes and probabilities from the ``valid_step`` of the model, which any model has.
    """

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, fit: FitConfig) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.fit = fit
        """The section ``fit`` of the run."""
        self.eval()

    @property
    def info(self) -> data.DatasetInfo:
        """The description of the training data."""
        return self.preprocessing.info

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def forward(self, samples: Any) -> Tensor:
        """Return the output of the model for *samples*, (N, …), in the precision of the training."""
        inputs = self.preprocessing(samples).to(self.device)
        with MixedPrecision(self.fit.precision, self.device).autocast():
            output: Tensor = self.model(inputs)
        return output

    @torch.no_grad()
    def predict(self, samples: Any, batch_size: int | None = None) -> Predictions:
        """Return the predictions for *samples*, computed in batches of *batch_size*.

        *batch_size* is that of the training by default, so that the predictions for the test split are those
        that save-model measured. Raises `BuilderError` if the steps of the model take several views of a
        sample, or return no output.
        """
        if self.fit.views > 1:
            raise BuilderError(
                f"the steps of {type(self.model).__name__} take {self.fit.views} views of each sample "
                "(fit.views), and predict has one. Call the model itself, which is the attribute model"
            )
        was_training = self.training
        self.eval()
        size = batch_size or self.fit.batch_size
        has_leaves = isinstance(self.info.input_shape, dict)
        starts = range(0, count_rows(samples) if has_leaves else len(samples), size)
        blocks = (slice(start, start + size) for start in starts)
        outputs = [
            self._compute(take(samples, block) if has_leaves else samples[block]).cpu() for block in blocks
        ]
        self.train(was_training)
        if not outputs:
            raise DataError("predict needs at least one sample; found none")
        return self._interpret(_join(outputs))

    def _compute(self, samples: Any) -> Tensor:
        batch = move(self.preprocessing.build_batch(samples), self.device)
        step: Any = self.model
        with MixedPrecision(self.fit.precision, self.device).autocast():
            item = step.valid_step(batch)
        match item:
            case SequenceOutput():
                return item.logits.movedim(-1, 1)  # as those of positions: (B, V, T)
            case object(output=Tensor() as output):
                return output
        raise BuilderError(
            f"{type(self.model).__name__}.valid_step returns a {type(item).__name__}, which has no tensor "
            "output. Call the model itself"
        )

    def _interpret(self, outputs: Tensor) -> Predictions:
        classes = self.info.num_classes
        if not isinstance(classes, int):
            return Predictions(outputs)
        scores = outputs.float()
        if scores.ndim == 1 or scores.shape[1] == 1 < classes:  # one logit: that of class 1
            single = scores if scores.ndim == 1 else scores.squeeze(1)
            positive, numbers = single.sigmoid(), (single > 0).long()
            probabilities = torch.stack((1 - positive, positive), dim=-1)
        else:  # different logits may have equal probabilities
            probabilities, numbers = scores.softmax(dim=1).movedim(1, -1), outputs.argmax(1)
        names = self.info.class_names
        class_names = names if isinstance(names, tuple) else None
        if numbers.ndim > 1:
            numbers.masked_fill_(probabilities.isnan().any(-1), IGNORED_TARGET)
        return Predictions(outputs, probabilities, numbers, class_names)


def _join(outputs: Sequence[Tensor]) -> Tensor:
    """Return the *outputs* of batches below each other; shorter ones are filled up with NaN."""
    lengths = [max(sizes) for sizes in zip(*(output.shape[1:] for output in outputs), strict=True)]
    if all(list(output.shape[1:]) == lengths for output in outputs):
        return torch.cat(list(outputs))
    joined = outputs[0].new_full((sum(map(len, outputs)), *lengths), torch.nan)
    start = 0
    for output in outputs:
        joined[(slice(start, start + len(output)), *map(slice, output.shape[1:]))] = output
        start += len(output)
    return joined


def load_model(
    path: Path | str = "artifacts",
    *,
    data_directory: Path | str | None = None,
    device: str | torch.device = "cpu",
    allowed: Collection[str] = (),
) -> TrainedModel:
    """Return the trained model in the artifact directory or the run store *path*, or in the file *path*.

    Nothing is unpickled, and no code is run but that of this project:

        model = load_model("artifacts")
        labels = model.predict(images).labels

    Args:
        path: An artifact directory that save-model has finished, or a run store, such as ``.runs/3f2a…``,
            whose newest checkpoint is loaded, with the average of the weights if it has one. Or a file in
            one of them: the model, an export, or the ``model-N`` of a checkpoint with its own weights.
        data_directory: A directory that load-data wrote, with the description of the training data. Default:
            the description that save-model copied into the exports, or that fit copied into the run store.
        device: The device of the model.
        allowed: The import paths of the model, of the batcher and of other parts that are not built in, such
            as ``model:SmallNet``. Their code is run.

    Raises:
        CheckpointError: If a file is missing or invalid, or names code that is not in *allowed*, or if a run
            store has no checkpoint yet.
        RecordError: If the file of the model is missing or is not that of such a model.
    """
    place = Path(path)
    directory = _directory_of(place)
    is_store = (directory / KEY_FILE).exists()
    fit = _read_key_params(directory) if is_store else read_config(place).fit
    spec = LearnerSpec.read(directory if is_store else directory / LEARNER_FOLDER)
    spec.check_code(allowed)
    batcher = fit.batcher
    if batcher.kind not in {*BATCHERS, *allowed}:
        raise PluginError(
            f"fit.batcher: {batcher.kind!r} is not built in. Read that code, and add the name to allowed if "
            "you trust it"
        )
    info = _read_info(Path(data_directory or (directory if is_store else directory / EXPORTS_FOLDER)))
    with preserve_random_state():
        model, _, _ = spec.build(seed=0)
    if not is_store:
        _load_file(model, place)
    elif place.is_dir():
        _load_newest(model, place / CHECKPOINT_FOLDER)
    else:
        records.load_into(model, records.read_item(place), source=str(place))
    preprocessing = Preprocessing(info, data.build_batcher(batcher, info.scaling))
    return TrainedModel(model, preprocessing, fit).to(find_device(device))


def _load_file(model: nn.Module, place: Path) -> None:
    """Load the weights in the file *place*, or in that of the model in the artifact directory *place*."""
    recorder = read_config(place).save_model.recorder
    file = _directory_of(place) / f"model{recorder.suffix}" if place.is_dir() else place
    if file.name.endswith(recorder.suffix):
        records.load_file(model, file, records.build_recorder(recorder))
    else:
        records.load_into(model, records.read_item(file), source=str(file))


def _load_newest(model: nn.Module, directory: Path) -> None:
    """Load the weights of the newest checkpoint in *directory*, or their average."""
    checkpointer = FileCheckpointer(directory, records.DefaultRecorder())
    checkpoint = checkpointer.restore(max(checkpointer.list_saved(), default=1), parts=["model"])
    load_weights(model, use_average(checkpoint))


def _read_key_params(store: Path) -> FitConfig:
    """Return the params in the key of *store*, which has all that can change a number."""
    try:
        return FitConfig.model_validate((read_json(store / KEY_FILE) or {}).get("params"))
    except ValidationError as error:
        raise CheckpointError(
            f"{store / KEY_FILE} has no params of fit: {error.errors()[0]['msg']}. Run `learner runs verify`"
        ) from error


class RunConfig(Config):
    """The sections of ``config.json``, the resolved params of a run, that a trained model needs."""

    model_config = ConfigDict(extra="ignore")

    load_data: dict[str, Any]
    fit: FitConfig
    save_model: SaveModelConfig


def read_config(path: Path) -> RunConfig:
    """Return the params of the run whose artifact directory, or a file in it, is *path*.

    Raises `CheckpointError` if its ``config.json`` is missing or invalid.
    """
    file = _directory_of(path) / CONFIG_FILE
    try:
        return RunConfig.model_validate_json(read_regular(file))
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise CheckpointError(
            f"{file if path.exists() else path} cannot be read: {reason}. Pass an artifact directory, with "
            f"{CONFIG_FILE}, {LEARNER_FOLDER} and the file of the model, a run store, or a file in one of "
            "them. For a revision, call `load_model` of pipeline.project.revisions.model"
        ) from error


def read_epoch(path: Path) -> int:
    """Return the epoch of the weights in *path*, a file that save-model or fit wrote; 1 if it is unknown."""
    if checkpoint := parse_name(path.name):
        return checkpoint.epoch
    epoch = (read_json(_directory_of(path) / EXPORTS_FOLDER / MANIFEST) or {}).get("epoch")
    return epoch if isinstance(epoch, int) else 1


def _directory_of(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    is_part = folder.name == EXPORTS_FOLDER or (folder.name == CHECKPOINT_FOLDER and folder != path)
    return folder.parent if is_part else folder


def _read_info(directory: Path) -> data.DatasetInfo:
    path = directory / data.DATASET_FILE
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist: save-model has not run, or its deps in dvc.yaml lack ${{paths.data}}. "
            "Run it, or pass the directory of the prepared data"
        )
    return data.read_info(path)


def _encode(tokenizer: Mapping[str, Any], texts: Sequence[str], length: int) -> np.ndarray:
    """Return the ids of *texts*, (N, *length*), from the content of a ``tokenizer.json``."""
    encoder: ByteEncoder | TokenEncoder = ByteEncoder()
    if tokenizer != ByteEncoder.description:
        package = load_extra("tokenizers", "text", "a model of texts")
        encoder = TokenEncoder(package.Tokenizer.from_str(json.dumps(tokenizer)))
    ids, _ = encode_texts(encoder, texts, length, "predict")
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])))
