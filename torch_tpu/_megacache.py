"""Executables among the artifacts of torch.compiler.save_cache_artifacts: docs/compile.md."""

import os
import tempfile

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from torch_tpu import _core


def _path(key):
    folder = _core.core.tpu_cache_folder(False).decode()
    return os.path.join(folder, f"{key}.tpux") if folder else None


@CacheArtifactFactory.register
class TpuArtifact(CacheArtifact):
    """A file of the executable cache (docs/cache.md), which names and checks itself. Its bytes are read when they are asked for:
    most processes save no artifacts."""

    def __init__(self, key, content):
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_content", content)

    @property
    def content(self):
        """The file's bytes; none when it is there no more, or when nothing may be kept."""
        if self._content:
            return self._content
        try:
            with open(_path(self.key), "rb") as f:
                return f.read()
        except (OSError, TypeError):
            return b""

    def __eq__(self, other):
        return isinstance(other, TpuArtifact) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def populate_cache(self):
        """Puts the file into the folder, unless it is there."""
        path = _path(self.key)
        if path is None or not self.content or os.path.exists(path):
            return
        if len(self.key) != 32 or not self.key.isalnum():
            raise ValueError(f"torch_tpu: an artifact of the name {self.key!r} is no executable")
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd, made = tempfile.mkstemp(prefix="tmp.", dir=folder)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(self.content)
            os.rename(made, path)
        except BaseException:
            os.unlink(made)
            raise

    @staticmethod
    def type():
        """The artifact's kind."""
        return "tpu"


def record(key):
    """A compiled graph uses this executable."""
    if key:
        CacheArtifactManager.record_artifact(TpuArtifact.type(), key, b"")
