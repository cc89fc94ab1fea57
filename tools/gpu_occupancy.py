# SPDX-License-Identifier: Apache-2.0
"""What of a kernel fits on a multiprocessor at once: the arithmetic of CUDA's occupancy calculator, and what it needs of a
.cubin. Limits are those of the CUDA C++ Programming Guide's table of compute capabilities."""
import re
import struct

REGISTERS, PARTS, BLOCKS = 65536, 4, 32  # of a multiprocessor: each part schedules a quarter of its warps
WARP, BLOCK_SHARED = 32, 1024  # bytes that the system keeps of each block's shared memory
WARPS = {"80": 64, "86": 48, "87": 48, "89": 48, "90": 64, "100": 64, "103": 64, "120": 48}
SHARED = {"80": 164, "86": 100, "87": 164, "89": 100, "90": 228, "100": 228, "103": 228, "120": 100}  # KiB
FEW_BLOCKS = {"86": 16, "87": 16, "89": 24}
# The launch's shared memory, which no compiler knows: as LaunchShared is called in attention_matrix.cu,
# attention_matrix_backward.cu, attention_warpgroup*.cu, implicit.cu, layer_norm_backward.cu, softmax.cu
# (whose longest rows these are) and loss.cu (of 30528 words in 16 bits), from what the template is made for.
DYNAMIC = {
    "MatrixKernel": lambda _, depth, keys, bands: 2 * depth * (64 * bands + 2 * keys),
    "MatrixKeysKernel": lambda _, depth, stages: 2 * (2 + 2 * stages) * 64 * depth + 2 * 2 * 64 * 64,
    "MatrixQueriesKernel": lambda _, depth, stages, bands: 2 * (2 * bands + 2 * stages) * 64 * depth,
    "GroupKernel": lambda *_: 2 * (2 + 3 * 4) * 64 * 64,
    "GroupQueriesKernel": lambda *_: 2 * (4 + 3 * 4) * 64 * 64,
    "GroupKeysKernel": lambda *_: 2 * (4 * 64 * 64 + 5 * (2 * 64 * 64 + 512 + 256 + 256)),
    "ImplicitKernel": lambda _, columns: 2 * 3 * (128 + columns) * 32,
    "CrossEntropyKernel": lambda _, kept: 2 * 30528 * kept,
    "SoftmaxKernel": lambda kept: 48 * 1024 * kept,
    "SoftmaxBackwardKernel": lambda kept: 48 * 1024 * kept,
    "LayerNormBackwardKernel": lambda chunks, warps, _: 4 * 32 * 16 * chunks * warps,
    "ImplicitWeightKernel": lambda _, columns: 2 * 3 * (128 + columns) * 32,
}
# Of a section .nv.info.KERNEL: two bytes that say what follows, its length, and three extents.
MOST_THREADS, LENGTH_FOLLOWS = 0x05, 0x04


def dynamic_shared(kernel):
    """Bytes that a kernel, by its short name, is launched with."""
    found = re.fullmatch(r"(\w+)<([-\w, ]+)>", kernel)
    if found is None or found.group(1) not in DYNAMIC:
        return 0
    numbers = found.group(2).replace("true", "1").replace("false", "0").split(",")
    return DYNAMIC[found.group(1)](*[int(number) for number in numbers])


def resident_warps(architecture, threads, registers, shared):
    """Warps of a multiprocessor that blocks of `threads` with such registers a thread and shared bytes a block can be."""
    number = re.match(r"\d+", architecture).group()
    of_block = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256  # registers are given to a warp 256 at a time
    by_registers = REGISTERS // PARTS // of_warp * PARTS if of_warp else WARPS[number]
    blocks = min(FEW_BLOCKS.get(number, BLOCKS), min(WARPS[number], by_registers) // of_block,
                 SHARED[number] * 1024 // (-(-shared // 128) * 128 + BLOCK_SHARED))
    return blocks * of_block


def most_warps(architecture):
    return WARPS[re.match(r"\d+", architecture).group()]


def sections(cubin):
    """(name, bytes) of each section of an ELF file of 64 bits."""
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    start = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        text = cubin[start + name:cubin.index(b"\0", start + name)].decode()
        yield text, b"" if kind == 8 else cubin[offset:offset + length]


def block_sizes(cubin):
    """Kernel's mangled name -> threads of a block at most, as __launch_bounds__ says."""
    found = {}
    for name, data in sections(cubin):
        at = 0
        while name.startswith(".nv.info.") and at + 4 <= len(data):
            follows, what, length = struct.unpack_from("<BBH", data, at)
            if (follows, what) == (LENGTH_FOLLOWS, MOST_THREADS):
                x, y, z = struct.unpack_from("<III", data, at + 4)
                found[name[len(".nv.info."):]] = x * y * z
            at += 4 + (length if follows == LENGTH_FOLLOWS else 0)
    return found
