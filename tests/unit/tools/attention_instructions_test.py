# SPDX-License-Identifier: Apache-2.0
import unittest

import attention_instructions as counted


def code(*lines):
    """Instructions of "[@P0 ]NAME operands", 16 bytes each."""
    made = []
    for number, line in enumerate(lines):
        guarded = line.startswith("@")
        name, _, text = (line.split(" ", 1)[1] if guarded else line).partition(" ")
        made.append(counted.Instruction(16 * number, guarded, name, " " + text))
    return made


class AttentionInstructions(unittest.TestCase):
    def test_the_shortest_way_with_all_products_is_taken(self):
        lines = code(
            "MOV R1, R2",                      # 0x00
            "HMMA.16816.F32.BF16 R4, R8",      # 0x10: the loop
            "@P0 BRA 0x60",                    # 0x20
            "IMAD.WIDE.U32 R2, R3, -0x326172a9, RZ",  # 0x30: a random number
            "LOP3.LUT R1, R2, R3",             # 0x40
            "BRA 0x60",                        # 0x50
            "@!P1 BRA 0x90",                   # 0x60
            "ISETP.GE.AND P2, R1",             # 0x70: a mask
            "ISETP.GE.AND P2, R1",             # 0x80
            "HMMA.16816.F32.BF16 R4, R8",      # 0x90
            "@P3 BRA 0x10",                    # 0xa0
            "EXIT ")
        (products, without), (same, drawn) = counted.count(lines)
        self.assertEqual((products, same), (2, 2))
        self.assertEqual(without["issue"], 5)
        self.assertEqual(drawn["issue"], 8)
        self.assertEqual(without["integers"], 0)
        self.assertEqual(drawn["multiplications"], 2)
        self.assertAlmostEqual(drawn["tensor cores"], 2 * counted.PEAK_PRODUCT / counted.MMA_SHARE)

    def test_a_loop_inside_is_gone_through_twice(self):
        lines = code(
            "MOV R1, R2",
            "LDSM.16.M88.4 R4, [R8]",      # 0x10: the loop
            "HMMA.16816.F32.BF16 R4, R8",  # 0x20: the one inside
            "@P0 BRA 0x20",
            "@P1 BRA 0x10",
            "EXIT ")
        products, cycles = counted.count(lines)[0]
        self.assertEqual(products, 2)
        self.assertEqual(cycles["issue"], 6)
        self.assertEqual(cycles["shared memory"], 16)

    def test_a_warpgroups_product_is_eight_and_the_way_with_copies_and_exponents_counts(self):
        lines = code(
            "MOV R1, R2",
            "HGMMA.64x64x16.F32.BF16 R4, R8, gdesc[UR4]",                   # 0x10: the loop
            "HGMMA.64x64x16.F32.BF16 R4, gdesc[UR8]",                       # 0x20: both factors from shared memory
            "@P0 BRA 0x60",                                                 # 0x30
            "LDGSTS.E.BYPASS.128 [R1], desc[UR2][R2.64]",                   # 0x40
            "MUFU.EX2 R1, R2",                                              # 0x50
            "@P1 BRA 0x10",                                                 # 0x60
            "EXIT ")
        products, cycles = counted.count(lines)[0]
        self.assertEqual(products, 2 * counted.WGMMA_PRODUCTS)
        self.assertEqual(cycles["issue"], 6)
        self.assertEqual(cycles["exp2"], 8)
        self.assertEqual(cycles["shared memory"], 16 + 32 + 4)
        self.assertAlmostEqual(cycles["tensor cores"],
                               products * counted.PEAK_PRODUCT / counted.WGMMA_SHARE)

    def test_of_warps_in_turn_ones_products_and_instructions_follow_each_other(self):
        cycles = {"issue": 1000 * counted.ALONE, "tensor cores": 500, "exp2": 300}
        self.assertEqual(counted.taken("MatrixKernel", cycles), 1000 * counted.ALONE)
        self.assertEqual(counted.taken("GroupKeysKernel", cycles), 750)
        self.assertEqual(counted.taken("GroupKeysKernel", {**cycles, "exp2": 800}), 800)


if __name__ == "__main__":
    unittest.main()
