# SPDX-License-Identifier: Apache-2.0
import glob
import os
import re
import struct
import unittest

import gpu_occupancy
from source_files import ROOT


def elf(sections):
    """An ELF file of 64 bits of these (name, bytes), with the table of names last."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in sections) + b".shstrtab\0"
    body, headers, at = b"", [struct.pack("<IIQQQQ16x8x", 0, 0, 0, 0, 0, 0)], 0x40
    for name, data in [*sections, (".shstrtab", names)]:
        headers.append(struct.pack("<IIQQQQ16x8x", names.index(name.encode() + b"\0"), 1, 0, 0, at, len(data)))
        body += data
        at += len(data)
    begin = bytearray(0x40)
    struct.pack_into("<Q", begin, 0x28, at)
    struct.pack_into("<HHH", begin, 0x3A, 64, len(headers), len(headers) - 1)
    return bytes(begin) + body + b"".join(headers)


class GpuOccupancyTest(unittest.TestCase):
    def warps(self, architecture, threads, registers, shared=0):
        return gpu_occupancy.resident_warps(architecture, threads, registers, shared)

    def test_registers_go_to_warps_of_a_quarter(self):
        # 33 registers are 1,280 of a warp: 51 warps' worth, but 12 in each quarter.
        self.assertEqual([self.warps("90a", 128, number) for number in (16, 32, 33, 128, 255)], [64, 64, 48, 16, 8])

    def test_warps_come_in_whole_blocks(self):
        self.assertEqual(self.warps("90a", 256, 72), 24)  # 28 by registers
        self.assertEqual(self.warps("90a", 96, 32), 63)

    def test_small_blocks_are_limited_by_their_number(self):
        self.assertEqual([self.warps(each, 32, 16) for each in ("80", "86", "89", "100a")], [32, 16, 24, 32])

    def test_shared_memory_limits_with_what_the_system_keeps(self):
        self.assertEqual(self.warps("90", 128, 32, 48 * 1024), 16)  # 4 of 49 KiB in 228
        self.assertEqual(self.warps("80", 128, 32, 48 * 1024), 12)  # 3 in 164
        self.assertEqual(self.warps("86", 128, 32, 100 * 1024), 0)  # cannot be launched

    def test_what_a_launch_adds_is_worked_out_from_the_template(self):
        self.assertEqual(gpu_occupancy.dynamic_shared("MatrixKernel<2, 128, 32, 2>"), 49152)
        self.assertEqual(gpu_occupancy.dynamic_shared("MatrixKeysKernel<1, 64, 2>"), 65536)
        self.assertEqual(gpu_occupancy.dynamic_shared("GroupKernel<1, true>"), 114688)
        self.assertEqual(gpu_occupancy.dynamic_shared("ImplicitKernel<2, 128>"), 49152)
        self.assertEqual(gpu_occupancy.dynamic_shared("PoolKernel<-1>"), 0)
        self.assertEqual(gpu_occupancy.dynamic_shared("FillKernel"), 0)

    def test_every_launch_with_shared_memory_is_known(self):
        launched = set()
        for path in glob.glob(os.path.join(ROOT, "engine/cuda/kernels/*.cu")):
            with open(path, encoding="utf-8") as file:
                launched.update(re.findall(r"LaunchShared\((\w+)", file.read()))
        self.assertEqual(launched, set(gpu_occupancy.DYNAMIC))

    def test_a_cubin_says_how_large_blocks_may_be(self):
        other = struct.pack("<BBH", 0x03, 0x1B, 0xFF) + struct.pack("<BBHI", 0x04, 0x2F, 4, 7)
        most = struct.pack("<BBHIII", 0x04, 0x05, 12, 32, 8, 1)
        cubin = elf([(".text._Z1a", b"\x04\x05\x0c\0" * 4), (".nv.info._Z1a", other + most), (".nv.info._Z1b", other)])
        self.assertEqual(gpu_occupancy.block_sizes(cubin), {"_Z1a": 256})


if __name__ == "__main__":
    unittest.main()
