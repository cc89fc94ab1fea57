// SPDX-License-Identifier: Apache-2.0
// Matrix products of fp32 or bf16 factors on plain row-major memory, sums and results in fp32, for
// the shapes of training: weights
// change every step, so nothing is packed beforehand. Tiles are held in registers; blocks of A and
// B are packed in the course of the product, where that costs less than strided reads. Products of
// few rows read B where it lies.
//
// An element of C is one chain of fused multiplications and additions over ascending k, begun with
// C or with 0 (docs/same_bits.md): blocks, threads and instruction sets leave its bits alone.
//
// Thread-safety: immutable after construction.
#ifndef LOCKSTEP_ENGINE_CPU_GEMM_H_
#define LOCKSTEP_ENGINE_CPU_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/cpu/simd/half_kernels.h"
#include "engine/cpu/simd/row_kernels.h"
#include "engine/cpu/simd/simd.h"
#include "engine/cpu/thread_pool.h"

namespace lockstep::engine {

// C[m, n] (+)= op(A)[m, k] * op(B)[k, n], C dense.
struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool a_transposed = false;  // A is stored [k, m]
  bool b_transposed = false;  // B is stored [n, k]
  // Elements from row to row of A as it is stored; 0: no more than they are long. Even of bf16
  // factors. REQUIRES: 0 with b_transposed.
  int64_t a_stride = 0;
  // The factors are bf16; each two of k make a pair, whose second product is added before the first
  // one. REQUIRES: PairsBf16(k). Rows of B that are read where they lie are widened on the way.
  bool bf16 = false;
  // They are multiplied pair by pair, instead of being widened while they are packed: the same
  // bits.
  bool pairs = false;
  // B is stored in fp32, and rounded to bf16 while it is packed. REQUIRES: bf16.
  bool rounds_b = false;
};

// Returns whether bf16 factors with this k make pairs. Others are multiplied as fp32, in ascending
// order.
inline bool PairsBf16(int64_t k) { return k % 2 == 0; }
// Returns whether `isa` has an instruction for pairs.
bool MultipliesPairs(Isa isa);

// What follows a product: c = act(sum + bias + residual), and c = 0 where mask <= 0. All but the
// bias are dense [m, n]; what is null is left out.
struct GemmEpilogue {
  const float* bias = nullptr;  // [n]
  const float* residual = nullptr;
  bool relu = false;
  const float* mask = nullptr;
  std::optional<Activation> activation;  // another one, without relu and mask
};

class Gemm {
 public:
  Gemm(const GemmShape& shape, Isa isa, int threads);

  size_t scratch_bytes() const { return scratch_floats_ * sizeof(float); }
  // a and b are float or, with shape.bf16, uint16_t, b with rounds_b float again. `scratch` has
  // scratch_bytes(), 64-byte aligned. Blocks until the product is whole. No two operands overlap.
  // REQUIRES: an epilogue only without `accumulate`.
  void Run(const void* a, const void* b, float* c, bool accumulate, const GemmEpilogue& epilogue,
           float* scratch, ThreadPool* pool) const;

  // B in the order of the product, for several products with one B: the bytes that it takes, 0
  // where there is no such order. It depends on n, k and the layout of B alone, and on whether the
  // product is one of few rows.
  size_t packed_bytes() const;
  // Makes it. `scratch` as for Run; it may be null without rounds_b. REQUIRES: packed_bytes() > 0;
  // `packed` 64-byte aligned.
  void PackAll(const void* b, float* packed, float* scratch, ThreadPool* pool) const;
  // Run with what PackAll made of b: the same bits.
  void RunPacked(const void* a, const float* packed, float* c, bool accumulate,
                 const GemmEpilogue& epilogue, float* scratch, ThreadPool* pool) const;

 private:
  // Panels of B that are rounded at a time: they are packed while they are in the cache.
  static constexpr int64_t kRoundedPanels = 4;

  // The product as the tiles see it: C^T instead of C when that packs the smaller operand, and
  // pairs of bf16 as one float. Where k is not the last extent of bf16 factors, a or b points to
  // uint16_t.
  struct Operands {
    const float* a;
    const float* b;
    const float* packed;  // all of b, or null
    float* c;
    int64_t c_stride;
    bool accumulate;
    TileEpilogue epilogue;
    const ThreadPool* pool = nullptr;
  };
  // Rows and panels of one thread, with its part of the scratch: blocks of B that are packed as a
  // whole, k block after k block; for each the blocks of rows of A.
  void RunTiles(const Operands& operands, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                int64_t panel_end, float* scratch) const;
  // RunTiles where the panels stay in L2: all of them pass by a few rows of A, so that A is read
  // and C written on from line to line.
  void RunRowsFirst(const Operands& operands, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end, float* scratch) const;
  // One block of rows on the block of B from panel_begin on, which `panels` holds where it is
  // packed. `next_a`: the rows of A after these, which the last panel's tiles ask for; may be null.
  void RunBlock(const Operands& operands, int64_t p, int64_t row_begin, int64_t row_end,
                int64_t panel_begin, int64_t panel_end, const float* panels, float* scratch,
                const float* next_a, Tile* tile) const;
  // The product of few rows: threads cut its columns.
  void RunFew(const Operands& operands, const GemmEpilogue& epilogue, float* scratch,
              ThreadPool* pool) const;
  // Columns [begin, end) of B, whose first is a panel's, in the order of RunFewPacked.
  void PackFew(const void* b, int64_t begin, int64_t end, float* panels) const;
  // The same with all of B packed: it is read in one stream, which is all the work.
  void RunFewPacked(Operands operands, float* scratch, ThreadPool* pool) const;
  // The panel of B that begins with `column`, whose first result goes to c.
  void RunFewPanel(const Operands& operands, int64_t column, float* c, int64_t c_stride) const;
  // The product of either way.
  void RunOn(Operands operands, const GemmEpilogue& epilogue, float* scratch,
             ThreadPool* pool) const;

  // Elements of B along k that few rows take: pairs of bf16 are one.
  int64_t StoredK() const { return shape_.bf16 ? shape_.k / 2 : shape_.k; }
  // The few rows of A, of bf16, in fp32, as tiles take them.
  void WidenFew(const float* a, float* to) const;
  // Returns what all tiles of the k block at `p` have in common, and the rest of one.
  Tile TileAt(const Operands& operands, int64_t p) const;
  void RunTile(const Operands& operands, int64_t row, int64_t rows, int64_t column,
               Tile* tile) const;
  // Rows [begin, end) of the k block at `p`, as tiles read them.
  void PackA(const float* a, int64_t p, int64_t k, int64_t begin, int64_t end, float* packed) const;
  void PackB(const float* b, int64_t p, int64_t k, int64_t column, float* panel) const;
  // The panels of columns [begin, end), k block at `p`. `scratch`: the thread's part; null without
  // rounds_b. REQUIRES: both are borders of panels.
  void PackPanels(const float* b, int64_t p, int64_t k, int64_t begin, int64_t end, float* panels,
                  float* scratch) const;
  // The same of B in fp32, a few panels at a time.
  void RoundPanels(const float* b, int64_t p, int64_t k, int64_t begin, int64_t end, float* panels,
                   uint16_t* rounded) const;
  // Floats from the beginning of all packed panels to panel `panel` of the k block at `p`.
  int64_t PackedAt(int64_t p, int64_t panel) const;
  // Thread `index`'s rows of c through the epilogue's activation.
  void Activate(const GemmEpilogue& epilogue, int index, float* c) const;
  // From the transposed product `from` to columns [begin, end) of c, with the epilogue.
  void PutTransposed(const float* from, const GemmEpilogue& epilogue, int64_t begin, int64_t end,
                     float* c) const;

  const SimdKernels& simd_;
  const RowKernels& row_simd_;
  const HalfKernels& half_;
  const int threads_;
  const GemmShape shape_;
  bool few_ = false;         // a product of FewRows, which packs nothing by itself
  bool widens_few_ = false;  // of bf16 with B packed, A is widened before its tiles
  bool wide_ = false;        // bf16 that is widened while it is packed
  int64_t each_ = 1;         // counts of k that a stored element makes, 2 of wide pairs
  int64_t k_ = 0;            // counts of k, or pairs of them
  bool swapped_ = false;     // tiles compute C^T
  int64_t m_ = 0;            // rows and columns of the tiles' product
  int64_t n_ = 0;
  int64_t a_stride_ = 0;  // of A as it is given: of stored elements, or halves where it is a_k_
  int64_t a_row_ = 0;     // of stored elements, as all strides
  int64_t a_k_ = 0;
  int64_t b_stride_ = 0;    // of the stored rows of B
  bool b_columns_ = false;  // B is stored [n, k] for the tiles: packing transposes
  bool pack_ = false;       // B
  bool pack_a_ = false;
  bool rows_first_ = false;
  bool copies_rows_ = false;  // packed A lies row by row
  bool rounds_a_ = false;     // the tiles' A is rounds_b's B
  int64_t k_block_ = 0;
  int64_t row_block_ = 0;
  int64_t block_panels_ = 0;
  size_t panel_floats_ = 0;  // of one thread: the block of B, then that of A
  size_t a_pack_offset_ = 0;
  size_t rounded_offset_ = 0;    // of what RoundPanels rounds
  int64_t gathered_offset_ = 0;  // of few rows' results, behind the rows that are widened
  size_t scratch_floats_ = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_GEMM_H_
