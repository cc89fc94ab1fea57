# SPDX-License-Identifier: Apache-2.0
import unittest

import kernel_registers

TEXT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90a'
ptxas info    : Function properties for _Z1aPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Compile time = 8.1 ms
ptxas info    : Compiling entry function '_Z1bPf' for 'sm_90a'
ptxas info    : Function properties for _Z1bPf
    64 bytes stack frame, 60 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 64 bytes cumulative stack size
"""


class KernelRegistersTest(unittest.TestCase):
    def test_each_kernel_is_a_row(self):
        self.assertEqual(kernel_registers.parse(TEXT), [("_Z1aPf", 32, 4096, 0, 0), ("_Z1bPf", 255, 0, 64, 72)])

    def test_what_is_called_counts_with_its_kernel(self):
        text = TEXT.replace("ptxas info    : Used 32", "ptxas info    : Function properties for _Z1cPf\n"
                            "    8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\n"
                            "ptxas info    : Used 32")
        self.assertEqual(kernel_registers.parse(text)[0], ("_Z1aPf", 32, 4096, 8, 4))

    def entries(self):
        one, other = kernel_registers.parse(TEXT)
        return {("a", "A"): {"80": (one, 128), "90a": (other, 128)}, ("a", "B"): {"90a": (one, None)}}

    def test_a_kernel_has_a_column_for_each_architecture(self):
        self.assertEqual(kernel_registers.table(self.entries(), ["80", "90a"]).splitlines(), [
            "| file | kernel | threads | shared bytes | sm_80 | sm_90a |",
            "|---|---|---|---|---|---|",
            "| a | `A` | 128 | 4096 | 32, 100 % | 255, 12 %, 72 bytes spilled |",
            "| a | `B` | None | 4096 |  | 32 |"])

    def test_spills_and_blocks_of_unknown_size_are_complained_of(self):
        found = {"A": self.entries()["a", "A"]["90a"], "B": self.entries()["a", "B"]["90a"]}
        self.assertEqual(list(kernel_registers.complaints("a", "90a", found)),
                         ["A of a spills 72 bytes on sm_90a", "B of a has no __launch_bounds__"])

    def test_names_are_short(self):
        self.assertEqual(
            kernel_registers.short("void lockstep::engine::cuda::(anonymous namespace)::MatrixKernel<"
                                   "(lockstep::engine::cuda::Type)2, 128>(lockstep::engine::cuda::AttentionArgs)"),
            "MatrixKernel<2, 128>")


if __name__ == "__main__":
    unittest.main()
