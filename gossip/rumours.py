"""Rumours: news to be spread, the least sent first (SWIM, Das et al. 2002, section 4.1)."""


class Rumours:
    """Names of peers about which there is news, by how often it was sent. At most one entry per name."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._levels: list[dict[str, None]] = []

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, name: str) -> None:
        """Spread news about `name`, instead of any older news about it."""
        self.drop(name)
        self._put(name, 0)

    def drop(self, name: str) -> None:
        level = self._sent.pop(name, None)
        if level is not None:
            del self._levels[level][name]

    def take(self, count: int, limit: int) -> list[str]:
        """Up to `count` names for one message. A name that was sent `limit` times is removed."""
        taken: list[str] = []
        for level in self._levels:
            for name in level:
                if len(taken) == count:
                    break
                taken.append(name)
        for name in taken:
            level_of = self._sent[name]
            self.drop(name)
            if level_of + 1 < limit:
                self._put(name, level_of + 1)
        return taken

    def clear(self) -> None:
        self._sent.clear()
        self._levels.clear()

    def _put(self, name: str, level: int) -> None:
        self._sent[name] = level
        while len(self._levels) <= level:
            self._levels.append({})
        self._levels[level][name] = None
