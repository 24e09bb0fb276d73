"""The data source ``text``: texts and their classes, as ids of tokens."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from stages.contracts.errors import DataError, closest
from stages.contracts.plugins import load_extra
from stages.data.sources.labels import describe_read_error, list_files, read_rows
from stages.data.splits import Arrays
from stages.system.files import open_text

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_SUFFIXES = (".jsonl", ".ndjson")
PADDING, UNKNOWN = "[PAD]", "[UNK]"
"""The tokens with the ids 0 and 1 of a trained vocabulary."""
ENCODED_TEXTS = 1024
"""The number of texts that are encoded at a time."""

Sample = dict[str, Any]
"""The ``text`` and the ``label`` of a sample, and its ``split`` and ``group`` if they are known."""


def text(
    path: str,
    *,
    text: str = "text",
    label: str = "label",
    tokenizer: str = "bytes",
    vocabulary_size: int = 10_000,
    max_length: int = 256,
    valid_path: str | None = None,
    test_path: str | None = None,
    split: str | None = None,
    group: str | None = None,
) -> Arrays:
    """Return texts as ids of tokens, (N, T), padded with 0, and their classes.

    *path* is a CSV or TSV file with a header, a file of JSON lines, or a folder with a folder of ``.txt``
    files for each class, which is read as one of images: the folders may be in ``train``, ``valid`` and
    ``test``. The files are UTF-8, with or without a byte order mark. *text* and *label* are columns or keys.

    *tokenizer* is ``bytes`` (an id is the byte + 1), ``words`` or ``bpe`` (a vocabulary of at most
    *vocabulary_size* tokens is trained on all texts), or the path of a ``tokenizer.json`` whose id 0 is the
    padding. Texts are cut after *max_length* tokens.

    *valid_path* and *test_path* have the texts of further splits, or *split* is a column or key with
    ``train``, ``valid`` and ``test``; *group* is one whose values decide which texts stay in one split.
    Raises `DataError` if a file cannot be read, for a row with other fields than the header, for a missing
    label, and for a text without tokens.
    """
    if split and (valid_path or test_path):
        raise DataError("load_data.source.split: set either split, or valid_path and test_path")
    paths = {"train": path, "valid": valid_path, "test": test_path}
    names = {"text": text, "label": label, "split": split, "group": group}
    samples = list(_read_splits(paths, {key: name for key, name in names.items() if name is not None}))
    texts, labels = [str(sample["text"]) for sample in samples], [sample["label"] for sample in samples]
    targets, class_names = to_classes(labels)
    ids, facts = encode_columns({"": texts}, tokenizer, vocabulary_size, max_length, path)
    if class_names:
        facts["class_names"] = class_names
    columns: dict[str, Any] = {
        f"{key}s": np.array([str(sample[key]) for sample in samples])
        for key in ("split", "group")
        if key in samples[0]
    }
    return Arrays(ids[""], targets, (f"{path}: {text}", f"{path}: {label}"), facts, **columns)


class ByteEncoder:
    """The bytes of a text in UTF-8, as ids from 1 to 256."""

    size = 257
    description: dict[str, Any] = {"kind": "bytes"}  # noqa: RUF012  never changed

    def encode(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text."""
        for content in texts:
            yield np.frombuffer(content.encode("utf-8", "replace"), np.uint8).astype(np.int64) + 1


class TokenEncoder:
    """A tokenizer of the package ``tokenizers``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size()
        self.description: dict[str, Any] = json.loads(tokenizer.to_str())
        """The content of its ``tokenizer.json``."""

    def encode(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text."""
        for encoding in self._tokenizer.encode_batch(list(texts)):
            yield np.array(encoding.ids, np.int64)


def encode_columns(
    texts: Mapping[str, Sequence[str]], tokenizer: str, vocabulary_size: int, max_length: int, path: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the ids of the columns *texts*, which share a vocabulary, and the facts about it."""
    if not texts:
        return {}, {}
    encoder = build_encoder(tokenizer, [*chain.from_iterable(texts.values())], vocabulary_size)
    encoded = {name: encode_texts(encoder, column, max_length, path) for name, column in texts.items()}
    truncated = sum(count for _, count in encoded.values())
    facts = {"tokenizer": encoder.description, "vocabulary_size": encoder.size, "truncated": truncated}
    return {name: ids for name, (ids, _) in encoded.items()}, facts


def build_encoder(name: str, texts: Sequence[str], size: int) -> ByteEncoder | TokenEncoder:
    """Return the encoder *name*: ``bytes``, ``words``, ``bpe`` or the path of a file, as `text` describes."""
    if name == "bytes":
        return ByteEncoder()
    package = load_extra("tokenizers", "text", "the data source 'text'")
    if name not in ("words", "bpe"):
        return TokenEncoder(_load_tokenizer(package, Path(name)))
    is_bpe = name == "bpe"
    model = package.models.BPE(unk_token=UNKNOWN) if is_bpe else package.models.WordLevel(unk_token=UNKNOWN)
    tokenizer = package.Tokenizer(model)
    tokenizer.normalizer = package.normalizers.Sequence(
        [package.normalizers.NFKC(), package.normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    trainers = package.trainers
    trainer = (trainers.BpeTrainer if is_bpe else trainers.WordLevelTrainer)(
        vocab_size=size, special_tokens=[PADDING, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TokenEncoder(tokenizer)


def _load_tokenizer(package: Any, path: Path) -> Any:
    if not path.is_file():
        raise DataError(
            f"load_data.source.tokenizer: there is no file {str(path)!r}. Use bytes, words, bpe, or the path "
            "of a tokenizer.json"
        )
    try:
        tokenizer = package.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the package raises Exception itself
        raise DataError(f"{path} is not a file of the package tokenizers: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode_texts(
    encoder: ByteEncoder | TokenEncoder, texts: Sequence[str], max_length: int, path: str
) -> tuple[np.ndarray, int]:
    """Return the ids of *texts* in the smallest type, cut and padded, and the number of cut texts."""
    ids = np.zeros((len(texts), max_length), np.min_scalar_type(encoder.size))
    longest = truncated = 0
    for start in range(0, len(texts), ENCODED_TEXTS):
        for row, tokens in enumerate(encoder.encode(texts[start : start + ENCODED_TEXTS]), start=start):
            if not len(tokens):
                raise DataError(f"{path}: text {row}, counted from 0, has no tokens. Remove it")
            first_tokens = tokens[:max_length]
            ids[row, : len(first_tokens)] = first_tokens
            longest = max(longest, len(first_tokens))
            truncated += len(tokens) > max_length
    return ids[:, :longest], truncated


def to_classes(labels: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return the class of each label, and the names of the classes unless the labels are integers."""
    if all(isinstance(label, int) or _is_number(str(label)) for label in labels):
        return np.array([int(label) for label in labels], np.int64), None
    names = tuple(sorted({str(label) for label in labels}))
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[str(label)] for label in labels], np.int64), names


def _is_number(label: str) -> bool:
    """Return whether *label* is a number as Python writes it: 01 is another class than 1."""
    return label.isdecimal() and str(int(label)) == label


def _read_splits(paths: Mapping[str, str | None], names: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the samples of each path; with several, each sample has the name of its path as ``split``."""
    files = {split: Path(path) for split, path in paths.items() if path is not None}
    for split, path in files.items():
        label = {"split": split} if len(files) > 1 else {}
        argument = "path" if split == "train" else f"{split}_path"
        yield from (sample | label for sample in _read(path, names, f"load_data.source.{argument}"))


def _read(path: Path, names: Mapping[str, str], argument: str) -> list[Sample]:
    """Return all samples at *path*, in the order of the file or of the names of the files."""
    try:
        samples = list(_iterate(path, names, argument))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{argument}: {path} cannot be read: {describe_read_error(error)}") from error
    if not samples:
        raise DataError(f"{argument}: {path} has no texts. Correct the path")
    return samples


def _iterate(path: Path, names: Mapping[str, str], argument: str) -> Iterator[Sample]:
    if path.is_dir():
        if others := sorted({"split", "group"} & set(names)):
            raise DataError(
                f"load_data.source.{others[0]}: {path} is a folder and has no columns. Remove the key"
            )
        yield from _read_folder(path)
        return
    rows = read_samples(path)
    if rows is None:
        raise DataError(f"{argument}: {path} must be a folder, or end in .csv, .tsv or .jsonl")
    for line, row in rows:
        yield {key: pick_field(row, name, key, f"{path}, line {line}") for key, name in names.items()}


def read_samples(path: Path) -> Iterator[tuple[int, Any]] | None:
    """Return the rows of a CSV, TSV or JSON lines file, each with its line; None for another file."""
    suffix = path.suffix.lower()
    if suffix in DELIMITERS:
        return read_rows(path, DELIMITERS[suffix])
    return _read_json_lines(path) if suffix in JSON_SUFFIXES else None


def _read_folder(path: Path) -> Iterator[Sample]:
    for file in list_files(path, (".txt",), "texts"):
        try:
            with open_text(path / file.path) as lines:
                content = lines.read()
        except UnicodeDecodeError as error:
            raise DataError(f"{path / file.path} cannot be read: {describe_read_error(error)}") from None
        split = {"split": file.split} if file.split else {}
        yield {"text": content, "label": file.label} | split


def _read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: not JSON: {error}. Correct the line") from None


def pick_field(row: Any, name: str, key: str, where: str) -> Any:
    """Return the value of *name* in *row*, the *key* of a sample, which is text or an integer."""
    value = row.get(name) if isinstance(row, dict) else None
    if value is None:
        keys = [str(field) for field in row] if isinstance(row, dict) else []
        raise DataError(
            f"{where}: the sample has no {name!r}.{closest(name, keys)} Found: {', '.join(keys) or 'no keys'}"
        )
    if not isinstance(value, str | int) or (key != "text" and not str(value).strip()):
        raise DataError(
            f"{where}: {name!r} must be text or an integer; found {value!r:.60}. Correct it, or remove "
            "the row"
        )
    return value
