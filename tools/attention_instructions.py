#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What of the tensor cores' peak the attention kernels can reach, counted from their machine code: a table in Markdown, and the
constants of engine/cuda/attention_engine.cc. Needs nvcc and cuobjdump, and no GPU.

    tools/attention_instructions.py [--architecture 90a] [--keep FOLDER]

Of each kernel's main loop the path is taken that makes all products in the fewest instructions: where all keys count, once with
dropout and once without. A multiprocessor's quarter issues one instruction a cycle, and each kind of instruction keeps its unit
busy for some (CYCLES); the loop takes as long as the busiest unit, or what follows one another in a warp. docs/gpu.md says what becomes of it.
"""
import argparse
import collections
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile

import kernel_registers

# Cycles for which an instruction of a warp keeps its unit of a quarter busy: 32 lanes by the results per cycle and
# multiprocessor that the CUDA C++ Programming Guide has for compute capability 9.0 (128 for fp32, 64 for integers, 16 for
# exp2), the 128 bytes per cycle of shared memory, and for products by mma.sync 63 % of the peak of 4096 operations per cycle,
# which is what it reaches on this architecture, and 95 % by wgmma of 64 x 64 x 16 with the left factor in registers (W. Luo
# et al., "Benchmarking and dissecting the NVIDIA Hopper GPU architecture via microbenchmarking", 2024). Of such a product a
# warp makes 16 rows, and the right factor's 2 KiB come from shared memory once for four warps.
PEAK_PRODUCT = 4.0  # of a product of 16 x 8 x 16 at the peak
MMA_SHARE = 0.63
WGMMA_SHARE = 0.95
WGMMA_PRODUCTS = 8
CYCLES = (
    ("tensor cores", r"HMMA", PEAK_PRODUCT / MMA_SHARE),
    ("tensor cores", r"HGMMA", WGMMA_PRODUCTS * PEAK_PRODUCT / WGMMA_SHARE),
    ("shared memory", r"HGMMA", 16),
    ("exp2", r"MUFU", 8),
    ("shared memory", r"LDSM\.16\.MT?88\.4|LDSM\.16\.M88\.4", 16),
    ("shared memory", r"LDSM|LDS|STS|LDGSTS", 4),
    ("integers", r"(ISETP|LOP3|SHF|IADD3|LEA|PRMT|SEL|FSEL|FSETP|FMNMX|IMNMX|VIMNMX|F2FP|PLOP3|LOP|IABS|P2R|R2P|I2F|BREV|POPC|SGXT)\b", 2),
    ("multiplications", r"IMAD", 2),
)
# Kernels whose quarter has two warps that begin products in turn (attention_warpgroup.h): while tensor cores work for one,
# the other is alone with its instructions and waits for their results. That it issues one in so many cycles is a guess.
IN_TURNS = ("GroupKeysKernel", "GroupQueriesKernel")
ALONE = 0.6
PHILOX = re.compile(r"0x(d2511f53|cd9e8d57)|-0x(2daee0ad|326172a9)")
KERNELS = {"attention_matrix": ("MatrixKernel",), "attention_matrix_backward": ("MatrixKeysKernel", "MatrixQueriesKernel"),
           "attention_warpgroup": ("GroupKernel",),
           "attention_warpgroup_backward": ("GroupKeysKernel", "GroupQueriesKernel")}
PRODUCTS = {"MatrixKernel": 2, "MatrixKeysKernel": 4, "MatrixQueriesKernel": 3,  # of the two products of scores and values
            "GroupKernel": 2, "GroupKeysKernel": 4, "GroupQueriesKernel": 3}
DROPOUT = ("no", "yes", "kept")  # the last: from the forward to the backward pass
Instruction = collections.namedtuple("Instruction", "address guarded name text")
Path = collections.namedtuple("Path", "count instructions")


def functions(cubin):
    """Mangled name -> its instructions, in order."""
    tool = shutil.which("cuobjdump") or os.path.join(os.path.dirname(kernel_registers.nvcc()), "cuobjdump")
    text = subprocess.run([tool, "-sass", cubin], text=True, capture_output=True, check=True).stdout
    found, current = {}, None
    for line in text.splitlines():
        name = re.match(r"\s*Function : (\S+)", line)
        if name:
            current = found.setdefault(name.group(1), [])
        code = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\d+ |@!?U?PT )?\s*([A-Z0-9_.]+)([^;]*);", line)
        if code and current is not None:
            current.append(Instruction(int(code.group(1), 16), bool(code.group(2)), code.group(3), code.group(4)))
    return found


def blocks_of(code):
    """Blocks of instructions that run one after another, and the blocks that may follow each."""
    target = {}
    for one in code:
        place = re.search(r"(?:^|\s)(0x[0-9a-f]+)\s*$", one.text)
        if place and re.match(r"(BRA|BRX|JMP)\b", one.name):
            target[one.address] = int(place.group(1), 16)
    begins = {code[0].address} | set(target.values())
    for before, after in zip(code, code[1:]):
        if re.match(r"(BRA|EXIT|RET|JMP|BRX)\b", before.name):
            begins.add(after.address)
    blocks, follow = {}, {}
    for one in code:
        if one.address in begins:
            blocks[one.address] = []
            first = one.address
        blocks[first].append(one)
    starts = sorted(blocks)
    for at, after in zip(starts, starts[1:] + [None]):
        last = blocks[at][-1]
        follow[at] = [target[last.address]] if last.address in target else []
        ends = re.match(r"(BRA|EXIT|RET|JMP|BRX)\b", last.name)
        unsure = last.guarded or ".DIV" in last.name or re.search(r"\b!?U?P\d", last.text) is not None
        if after is not None and (not ends or unsure):
            follow[at].append(after)
    return blocks, follow


def loops(blocks, follow):
    """(head, tail, blocks) of each natural loop."""
    before = collections.defaultdict(list)
    for at, others in follow.items():
        for other in others:
            before[other].append(at)
    for tail, others in follow.items():
        for head in others:
            if head > tail:
                continue
            inside, todo = {head}, [tail]
            while todo:
                at = todo.pop()
                if at not in inside:
                    inside.add(at)
                    todo.extend(before[at])
            yield head, tail, inside


def products_in(block):
    return sum({"HMMA": 1, "HGMMA": WGMMA_PRODUCTS}.get(one.name.split(".")[0], 0) for one in block)


def copies_in(block):
    """Of the next tile, and of dropout's bits."""
    return sum(one.name.startswith("LDGSTS") for one in block)


def exponents_in(block):
    return sum(one.name.startswith("MUFU.EX2") for one in block)


def draws_in(block):
    return sum(PHILOX.search(one.text) is not None for one in block)


def paths(blocks, follow, head, tail, inside, inner):
    """(products, copies, exponents, draws) -> the Path through a loop with the fewest instructions. Inner loops are gone through `inner` times
    where they have products, once else."""
    sys.setrecursionlimit(10000)

    def weight(at):
        return 2 if any(at in loop and any(products_in(blocks[b]) for b in loop) for _, _, loop in inner) else 1

    @functools.lru_cache(maxsize=None)
    def rest(at):
        own = blocks[at] * weight(at)
        here = (products_in(own), copies_in(own), exponents_in(own), draws_in(own))
        found = {}
        if at == tail:
            found[here] = own
        for other in follow[at]:
            back = any(other == first and at in loop for first, _, loop in inner)
            if other not in inside or other == head or back:
                continue
            for counts, code in rest(other).items():
                key = tuple(a + b for a, b in zip(counts, here))
                if key not in found or len(found[key]) > len(code) + len(own):
                    found[key] = own + code
        return found
    return rest(head)


def busy(code):
    """Unit -> cycles of a path's instructions."""
    cycles = collections.Counter({"issue": len(code)})
    for one in code:
        taken = set()
        for unit, pattern, each in CYCLES:
            if unit not in taken and re.match(pattern, one.name):
                cycles[unit] += each
                taken.add(unit)
        if one.name.startswith("HGMMA") and re.match(r"\S+ R\d+, gdesc", one.text.strip()):
            cycles["shared memory"] += 16  # the left factor too
    return cycles


def taken(kernel, cycles):
    """Cycles of a turn of the kernel's loop, of one warp of as many as the quarter has."""
    busiest = max(cycles.values())
    if kernel not in IN_TURNS:
        return busiest
    return max(busiest, (cycles["tensor cores"] + cycles["issue"] / ALONE) / 2)


def count(code):
    """(products, cycles by unit) of a kernel without dropout and with it."""
    blocks, follow = blocks_of(code)
    found = list(loops(blocks, follow))
    best = max(found, key=lambda loop: (sum(products_in(blocks[b]) for b in loop[2]), len(loop[2])))
    inner = [loop for loop in found if loop[2] < best[2]]
    ways = paths(blocks, follow, *best, inner)
    # All that there is to do: a way may leave out the next tile's copies, or a tile that nobody sees.
    most = max(key[:3] for key in ways)
    draws = sorted(key[3] for key in ways if key[:3] == most)
    return [(most[0], busy(ways[(*most, d)])) for d in (draws[0], draws[-1])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="90a")
    parser.add_argument("--keep", default="")
    args = parser.parse_args()
    keep = args.keep or tempfile.mkdtemp()
    os.makedirs(keep, exist_ok=True)
    units = ["issue"] + list(dict.fromkeys(unit for unit, _, _ in CYCLES))
    print("| kernel | dropout | products | " + " | ".join(units) + " | of the peak |")
    print("|" + "---|" * (len(units) + 4))
    shares = {}
    for file, kernels in KERNELS.items():
        if kernel_registers.compile_one(file, args.architecture, keep) is None:
            return 1
        code = functions(os.path.join(keep, f"{file}.{args.architecture}.cubin"))
        for mangled, short in zip(code, kernel_registers.demangle(list(code))):
            kernel = re.fullmatch(r"(\w+)<1, (\d+|true|false)(?:, (.*))?>", short)  # bf16
            if kernel is None or kernel.group(1) not in kernels:
                continue
            if kernel.group(2).isdigit():
                depth, counts = int(kernel.group(2)), list(enumerate(count(code[mangled])))
            else:  # by warpgroups, a kernel for each; there the forward pass may leave dropout's bits
                drops = int(kernel.group(2) == "true")
                depth, counts = 64, [(drops + (kernel.group(3) == "true"), count(code[mangled])[drops])]
            for drops, (products, cycles) in counts:
                share = products * PEAK_PRODUCT / taken(kernel.group(1), cycles)
                shares[kernel.group(1), depth, drops] = share
                print(f"| `{short}` | {DROPOUT[drops]} | {products} | " +
                      " | ".join(f"{cycles[unit]:.0f}" for unit in units) + f" | {100 * share:.0f} % |")
    for forward, backward in (("attention_matrix", "attention_matrix_backward"),
                              ("attention_warpgroup", "attention_warpgroup_backward")):
        print(forward)
        for depth in sorted({depth for kernel, depth, _ in shares if kernel in KERNELS[forward]}):
            kinds = [drops for drops in range(len(DROPOUT)) if (KERNELS[forward][0], depth, drops) in shares]
            row = [shares[KERNELS[forward][0], depth, drops] for drops in kinds]
            # The owners of keys read bits whoever leaves them.
            shares.update({(kernel, depth, 2): shares[kernel, depth, 1] for kernel in KERNELS[backward]
                           if (kernel, depth, 2) not in shares})
            # Seven products are made, of which the gradient is said to have five.
            row += [5 / sum(PRODUCTS[kernel] / shares[kernel, depth, drops] for kernel in KERNELS[backward])
                    for drops in kinds]
            print(f"{{{depth}, " + ", ".join(f"{share:.2f}" for share in row) + "},")
    return 0


if __name__ == "__main__":
    sys.exit(main())
