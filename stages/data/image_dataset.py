"""A dataset of images in files, which are decoded when they are requested."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stages.contracts.errors import DataError
from stages.data.datasets import Samples
from stages.data.image_files import ImageDecoder, ImageFiles, put


class ImageFileDataset:
    """Samples whose images are in files. A batch is decoded into one tensor, best by worker processes."""

    def __init__(self, files: ImageFiles, targets: Tensor) -> None:
        self.files = files
        self.targets = targets
        self._decoder = ImageDecoder(files.form)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Samples:
        """Return the samples at *indices*, in that order.

        Raises `DataError` with the path of a file that is missing, corrupt, or of another size in bytes than
        load-data read.
        """
        chosen = torch.as_tensor(indices)
        images = torch.empty((len(chosen), *self.files.form.shape), dtype=torch.uint8)
        for image, index in zip(images.numpy(), chosen.tolist(), strict=True):
            put(image, self._decoder.decode(*self._read(index)))
        return Samples(images, self.targets.index_select(0, chosen))

    def _read(self, index: int) -> tuple[str, bytes]:
        """Return the name and the content of a file."""
        name = self.files.names[index]
        content = self._decoder.read(name)
        if self.files.sizes is not None and len(content) != self.files.sizes[index]:
            raise DataError(
                f"{self.files.form.root}/{name} has {len(content)} bytes, but load-data read "
                f"{self.files.sizes[index]}. Run load-data again"
            )
        return name, content
