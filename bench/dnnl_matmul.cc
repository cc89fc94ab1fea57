// SPDX-License-Identifier: Apache-2.0
#include "bench/dnnl_matmul.h"

#include <dnnl.hpp>
#include <unordered_map>

// Of the OpenMP library that oneDNN brings along.
extern "C" void omp_set_num_threads(int threads);

namespace lockstep::bench {

struct DnnlMatmul::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  std::unordered_map<int, dnnl::memory> arguments;
};

DnnlMatmul::DnnlMatmul(const engine::GemmShape& shape, const float* a, const float* b, float* c)
    : impl_(std::make_unique<Impl>()) {
  omp_set_num_threads(1);
  using Tag = dnnl::memory::format_tag;
  const auto matrix = [](int64_t rows, int64_t columns, bool transposed) {
    return dnnl::memory::desc({rows, columns}, dnnl::memory::data_type::f32,
                              transposed ? Tag::ba : Tag::ab);
  };
  const auto left = matrix(shape.m, shape.k, shape.a_transposed);
  const auto right = matrix(shape.k, shape.n, shape.b_transposed);
  const auto out = matrix(shape.m, shape.n, false);
  impl_->matmul = dnnl::matmul(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(left, right, out), impl_->engine));
  impl_->arguments = {{DNNL_ARG_SRC, dnnl::memory(left, impl_->engine, const_cast<float*>(a))},
                      {DNNL_ARG_WEIGHTS, dnnl::memory(right, impl_->engine, const_cast<float*>(b))},
                      {DNNL_ARG_DST, dnnl::memory(out, impl_->engine, c)}};
}

DnnlMatmul::~DnnlMatmul() = default;

void DnnlMatmul::Run() {
  impl_->matmul.execute(impl_->stream, impl_->arguments);
  impl_->stream.wait();
}

}  // namespace lockstep::bench
