"""Names for the prefixes of a prompt: chained hashes of its token blocks (pure).

The hash of block i is a keyed BLAKE2b of everything up to the end of block i, and of what the KV state of a
prefix depends on beside its tokens: the model's digest and its adapters. The cache scope is in it as well:
requests of one scope may share. So two requests have a hash in common only if they may share that prefix.

Hashes are cut to 64 bits. Among n blocks, two have the same one with a probability of about n^2 / 2^65: 3e-8
for a million. Both would be in the same index, and one request would be sent to a worker that has nothing for
it. The key is a secret of the deployment, so no outsider can look for such blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

# Bytes of one hash.
HASH_BYTES = 8

_VERSION = "1"
_TOKEN_BYTES = 4
# Of a block in the index, which workers write and schedulers read.
BLOCK_TOKENS = 16


class PrefixHasher:
    """Hashes prompts of one model.

    Args:
        salt: the deployment's secret, 16 to 64 bytes.
        model_digest: of the model whose KV state is meant.
        adapters: digests of those that are applied, in order.
        block_tokens: tokens of a block. Hashes of other block sizes never compare equal.
    """

    def __init__(
        self,
        salt: bytes,
        *,
        model_digest: str,
        block_tokens: int = BLOCK_TOKENS,
        adapters: Sequence[str] = (),
    ) -> None:
        self.block_tokens = block_tokens
        self._salt = salt
        self._identity = (_VERSION, str(block_tokens), model_digest, *adapters)

    def of(self, token_ids: bytes, scope: str) -> list[bytes]:
        """The hash of each whole block's end, `HASH_BYTES` each; what is left behind the last has none.

        Args:
            token_ids: as `packed` makes them.
            scope: the request's, as `cache_scope_of` names it.
        """
        header = joined(part.encode() for part in (scope, *self._identity))
        state = blake2b(header, key=self._salt, digest_size=HASH_BYTES)
        tokens, size = memoryview(token_ids), self.block_tokens * _TOKEN_BYTES
        hashes: list[bytes] = []
        for end in range(size, len(tokens) + 1, size):
            state.update(tokens[end - size : end])
            hashes.append(state.copy().digest())
        return hashes


def joined(parts: Iterable[bytes]) -> bytes:
    """Each part with its length before it, so that no two lists of parts look alike."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as int32 in the machine's byte order, which is little-endian wherever llama.cpp's wheels run.

    Raises:
        OverflowError: an id is not an int32.
    """
    return array("i", token_ids[:]).tobytes()
