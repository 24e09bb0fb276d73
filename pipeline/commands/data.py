"""The command ``learner data``."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import report_unwritable
from stages.contracts.errors import ParamsError
from stages.contracts.printing import print_line, print_text

IMAGE_FILE = Path("samples.png")
EPOCHS_OF_AUGMENTATION = (1, 2, 3, 4)


def data(
    *,
    split: Annotated[str, typer.Option(help="Split to show: train, valid or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, max=1000, help="Samples to show, from the first one on.")] = 8,
    epoch: Annotated[
        list[int],
        typer.Option(
            min=1, help="Epoch to show; repeatable.", show_default="1 to 4 with augmentation, else 1"
        ),
    ] = [],  # noqa: B006  never changed
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write.",
            show_default=f"{IMAGE_FILE} for images; text is printed",
        ),
    ] = None,
) -> None:
    """Show samples as the model is trained on them, after augmentation.

    Images become a PNG file with a row for each sample and a column for each epoch; other inputs become a
    table of text.

    Example: learner data --count 4 --epoch 1 --epoch 2 --output samples.png
    """
    from pipeline.project.params import read_params
    from pipeline.project.paths import read_paths
    from stages.data import read
    from stages.data.sample_sheet import read_samples
    from stages.system.files import open_atomic

    fit, prepared = read_params().fit, read(read_paths()["data"], (split,))
    if split not in prepared.info.counts:
        raise ParamsError(
            f"--split {split!r}: the data has only {', '.join(prepared.info.counts)}. Use one of them"
        )
    epochs = epoch or (EPOCHS_OF_AUGMENTATION if fit.augment and split == "train" else (1,))
    sheet = read_samples(fit.build_loader(prepared, split), epochs, count)
    content = sheet.to_png() if sheet.has_images else sheet.to_text().encode()
    path = output or (IMAGE_FILE if sheet.has_images else None)
    if path is None:
        print_text(content.decode(), end="")
        return
    with report_unwritable(path), open_atomic(path) as file:
        file.write(content)
    shown = f"{'epoch' if len(epochs) == 1 else 'epochs'} {', '.join(map(str, epochs))}"
    print_line(f"wrote {path}: {len(sheet.targets)} samples of {split} in {shown}")
