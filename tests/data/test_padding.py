"""Sequences of different lengths: padded batches, buckets, and epoch values that do not depend on either."""

import pytest
import torch
import torch.nn.functional as F
from long_tests import covering_cases
from torch import nn

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError
from stages.contracts.outputs import ClassificationOutput
from stages.data import DataLoaderBuilder, Normalization, PadBatcher, TensorDataset, build_batcher
from stages.data.host_loader import BucketOrder
from stages.learner import EvaluatorBuilder
from stages.metrics import AccuracyMetric, LossMetric, PerplexityMetric
from stages.models import ClassificationStep

SAMPLES, IDS, CLASSES = 103, 20, 4
GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(1, 30, (SAMPLES,), generator=GENERATOR)
SENTENCES = [torch.randint(1, IDS, (int(length),), generator=GENERATOR) for length in LENGTHS]
ALL = range(SAMPLES)


class Texts:
    """Sentences with one class each."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return SENTENCES[index], SENTENCES[index].sum() % CLASSES


class Tags(Texts):
    """Sentences with one class for each token."""

    def __getitem__(self, index):
        return SENTENCES[index], SENTENCES[index] % CLASSES


class TextNet(ClassificationStep, nn.Module):
    """A classifier of the mean of the embedded tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(IDS, 8)
        self.linear = nn.Linear(8, CLASSES)

    def forward(self, inputs, mask):
        weights = mask / mask.sum(1, keepdim=True)
        return self.linear((self.embedding(inputs) * weights[..., None]).sum(1))

    def forward_classification(self, batch):
        logits = self(batch.inputs, batch.mask)
        return ClassificationOutput(self.loss(logits, batch.targets), logits, batch.targets)


class TagNet(TextNet):
    """A classifier of each token, (B, CLASSES, T)."""

    def forward(self, inputs, mask):
        return self.linear(self.embedding(inputs)).transpose(1, 2)

    def forward_classification(self, batch):
        logits = self(batch.inputs, batch.mask)
        return ClassificationOutput(
            self.loss(logits, batch.targets), logits, batch.targets, weight=batch.mask.sum()
        )


def build(dataset, batch_size=8, seed=7, *, bucket=False, workers=0):
    made = DataLoaderBuilder(PadBatcher()).batch_size(batch_size).num_workers(workers)
    if bucket:
        made.bucket()
    return (made if seed is None else made.shuffle(seed)).build(dataset)


def pad_rows():
    return nn.utils.rnn.pad_sequence(SENTENCES, batch_first=True)


DATASETS = {
    "sequences": Texts(),
    "rows of an array": TensorDataset(pad_rows(), torch.stack([x.sum() % CLASSES for x in SENTENCES])),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("bucket", [False, True])
def test_batch_is_as_long_as_its_longest_sequence(dataset, bucket):
    loader = build(dataset, bucket=bucket)
    found = []

    for batch, indices in zip(loader, loader.order.batches(1), strict=True):
        found += indices.tolist()
        assert batch.lengths.tolist() == LENGTHS[indices].tolist()
        assert batch.inputs.shape == batch.mask.shape == (len(indices), int(batch.lengths.max()))
        assert batch.inputs.dtype == torch.int64
        for row, mask, index in zip(batch.inputs, batch.mask, indices.tolist(), strict=True):
            assert torch.equal(row[mask], SENTENCES[index])
            assert not row[~mask].any()
        assert batch.targets.tolist() == [int(SENTENCES[index].sum() % CLASSES) for index in indices]

    assert sorted(found) == list(range(SAMPLES))


def test_sequences_without_targets_are_sorted_by_their_length():
    loader = build(SENTENCES, 8, None, bucket=True)

    longest = [batch.inputs.shape[1] for batch in loader]

    assert longest == [max(sorted(LENGTHS.tolist())[start : start + 8]) for start in range(0, SAMPLES, 8)]


@pytest.mark.parametrize(
    "dataset", [[{"words": row} for row in SENTENCES], TensorDataset({"words": pad_rows()})]
)
@pytest.mark.parametrize("bucket", [False, True])
def test_dict_of_inputs_is_no_sequence(dataset, bucket):
    with pytest.raises(BuilderError, match="takes sequences, .* found inputs of|need sequences as inputs"):
        next(iter(build(dataset, bucket=bucket)))


@pytest.mark.parametrize("in_memory", [False, True])
def test_targets_of_padded_tokens_are_ignored(in_memory):
    rows = pad_rows()
    dataset = TensorDataset(rows, rows % CLASSES) if in_memory else Tags()

    for batch in build(dataset):
        assert batch.targets.shape == batch.inputs.shape
        assert torch.equal(batch.targets != -100, batch.mask)
        assert torch.equal(batch.targets[batch.mask], batch.inputs[batch.mask] % CLASSES)


def test_sequences_of_vectors_are_padded():
    vectors = [torch.ones(length, 3, dtype=torch.float64) for length in (2, 5, 1)]

    batch = PadBatcher(pad_value=-1).batch([(each, torch.tensor(0.5)) for each in vectors])

    assert (batch.inputs.shape, batch.inputs.dtype) == ((3, 5, 3), torch.float32)
    assert batch.lengths.tolist() == [2, 5, 1]
    assert (batch.inputs[~batch.mask] == -1).all()


def test_targets_of_another_length_are_padded_to_their_longest():
    items = [(torch.ones(3), torch.tensor([1, 2])), (torch.ones(1), torch.tensor([4, 5, 6, 7]))]

    batch = PadBatcher(target_pad=-1).batch(items)

    assert batch.targets.tolist() == [[1, 2, -1, -1], [4, 5, 6, 7]]


def test_targets_of_another_length_are_not_masked_if_the_longest_is_as_long_as_the_inputs():
    """A translation whose longest sentences have five words in both languages, and labels of a text."""
    sentences = [torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7])]
    translations = [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6, 7, 8])]
    labels = [
        (torch.tensor([1, 2, 3]), torch.tensor([1, 0, 1])),
        (torch.tensor([4]), torch.tensor([0, 1, 1])),
    ]

    translated = PadBatcher().batch([*zip(sentences, translations, strict=True)])

    assert translated.targets.tolist() == [[1, 2, 3, -100, -100], [4, 5, 6, 7, 8]]
    assert PadBatcher().batch(labels).targets.tolist() == [[1, 0, 1], [0, 1, 1]]


def evaluate(loader, model, directory):
    metrics = [LossMetric(), AccuracyMetric(), PerplexityMetric()]
    evaluator = EvaluatorBuilder(directory).metrics(*metrics).device("cpu").build(model)
    return evaluator.eval("text", loader)


CASES = {"a class for each text": (Texts(), TextNet), "a class for each token": (Tags(), TagNet)}


@pytest.mark.parametrize(("dataset", "kind"), CASES.values(), ids=CASES)
def test_epoch_values_equal_evaluation_one_by_one(dataset, kind, tmp_path):
    torch.manual_seed(1)
    model = kind()
    one_by_one = evaluate(build(dataset, 1, None), model, tmp_path)

    for batch_size, seed, bucket in [(16, None, False), (16, None, True), (7, 3, True), (200, 3, True)]:
        loader = build(dataset, batch_size, seed, bucket=bucket)
        assert evaluate(loader, model, tmp_path) == pytest.approx(one_by_one, rel=1e-6)

    with torch.no_grad():
        outputs = [
            (model(x[None], torch.ones_like(x[None])), y[None]) for x, y in map(dataset.__getitem__, ALL)
        ]
        total = sum(F.cross_entropy(logits, y, reduction="sum") for logits, y in outputs)
    assert one_by_one["Loss"] == pytest.approx(float(total) / sum(y.numel() for _, y in outputs), rel=1e-6)


@pytest.mark.parametrize(("seed", "position"), covering_cases([None, 7], [0, 1, 12, 13], strength=1))
def test_bucketed_batches_are_a_function_of_seed_and_epoch(seed, position):
    def read(workers, first):
        loader = build(Texts(), seed=seed, bucket=True, workers=workers)
        loader.set_epoch(2)
        loader.set_position(first)
        return [batch.inputs.tolist() for batch in loader]

    assert len(read(0, 0)) == 13
    for workers in (0, 2):
        assert read(workers, position) == read(0, 0)[position:]


def test_buckets_pad_less_and_change_with_the_epoch():
    lengths = torch.randint(1, 100, (10_000,), generator=GENERATOR)
    order = BucketOrder(lengths, 32, seed=1)
    first, second = (torch.cat(list(order.batches(epoch))) for epoch in (1, 2))

    padding = [
        sum(int(lengths[each].max()) * len(each) for each in indices) / int(lengths.sum()) - 1
        for indices in (first.split(32), torch.arange(10_000).split(32))
    ]

    assert padding[0] < 0.05 < 0.8 < padding[1]
    assert not torch.equal(first, second)
    longest = [int(lengths[each].max()) for each in first.split(32)]
    assert longest != sorted(longest)


def test_lengths_of_a_dataset_are_used_if_it_has_them():
    class Measured(Texts):
        lengths = LENGTHS

        def __getitem__(self, index):
            raise AssertionError("no sample is needed")

    loader = build(Measured(), seed=None, bucket=True)

    assert torch.equal(torch.cat(list(loader.order.batches(1))), LENGTHS.argsort(stable=True))


def test_inputs_without_a_length_are_refused():
    with pytest.raises(BuilderError, match="takes sequences, .* found inputs of one number"):
        build(TensorDataset(torch.arange(4), torch.arange(4)), bucket=True)
    with pytest.raises(BuilderError, match="sample 0 has none: tensor\\(5\\). Set fit.bucket to false"):
        build([(torch.tensor(5), torch.tensor(1))], bucket=True)


def test_pad_is_built_by_its_name():
    batcher = build_batcher(Use(kind="pad", pad_value=9), Normalization(mean=3.0, std=2.0))

    batch = batcher.batch([(torch.tensor([3, 9]), torch.tensor(1))])

    assert batch.inputs.tolist() == [[3]]
