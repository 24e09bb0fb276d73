from .prefetcher import STREAM_DEVICES as STREAM_DEVICES
from .prefetcher import Copier as Copier
from .prefetcher import PlainCopier as PlainCopier
from .prefetcher import StagingRing as StagingRing
from .prefetcher import StreamCopier as StreamCopier
from .prefetcher import copy_in_turn as copy_in_turn
from .prefetcher import find_copier as find_copier
from .prefetcher import prefetch as prefetch
