"""The data. After an edit, `dvc repro` loads it again, and trains again."""

from pathlib import Path

import numpy as np

from stages.data import Arrays, Splits

NOUNS = ("cat", "dog", "bird", "horse", "writer", "farmer", "sailor", "teacher")
VERBS = ("see", "hear", "follow", "help", "find", "greet")
ADJECTIVES = ("", "", "old ", "young ", "quiet ", "happy ")
PLACES = ("in the garden", "near the river", "on the hill", "by the sea", "after the rain")


def windows(path: str | None = None, sentences: int = 1200, length: int = 64, step: int = 24) -> Splits:
    """Return windows of a text as ids of its characters, (N, length), and the next character at each place.

    The text is that in the file *path*, or one of random *sentences*. Its last tenth is the valid split.
    In train a window begins every *step* characters. Id 0 is the padding, which does not occur.
    """
    text = Path(path).read_text(encoding="utf-8") if path else make_text(sentences)
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters, start=1)}
    ids = np.array([numbers[character] for character in text], np.int64)
    facts = {"vocabulary_size": len(characters) + 1, "class_names": ("", *characters)}
    begin = len(ids) * 9 // 10
    train, valid = _cut(ids[:begin], length, step), _cut(ids[begin:], length, length)
    return Splits(train=Arrays(*train, facts=facts), valid=Arrays(*valid))


def make_text(sentences: int, seed: int = 0) -> str:
    """Return random sentences, whose verbs agree with their subjects across a clause in between."""
    generator = np.random.default_rng(seed)

    def draw(words: tuple[str, ...]) -> str:
        return words[generator.integers(len(words))]

    def draw_noun(ending: str) -> str:
        return f"the {draw(ADJECTIVES)}{draw(NOUNS)}{ending}"

    def draw_sentence() -> str:
        ending, other = draw(("", "s")), draw(("", "s"))
        clause = f" that {draw(VERBS)}{'' if ending else 's'} {draw_noun(other)}"
        subject = draw_noun(ending) + (clause if generator.random() < 0.3 else "")
        return f"{subject} {draw(VERBS)}{'' if ending else 's'} {draw_noun(other)} {draw(PLACES)}.\n"

    return "".join(draw_sentence() for _ in range(sentences))


def _cut(ids: np.ndarray, length: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of *ids*, and the same windows one character later."""
    rows = np.arange(0, len(ids) - length, step)[:, None] + np.arange(length)
    return ids[rows], ids[rows + 1]
