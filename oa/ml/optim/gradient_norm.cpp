#include "oa/ml/optim/gradient_norm.h"

#include "oa/matrix/kernel_tools.h"

namespace oa::ml {
namespace {

using graph::Infer;
using graph::Lower;
using graph::Samples;
using kernel::Buffer;
using kernel::F32;
using kernel::U32;
using kernel::Value;
using kernel::Var;

constexpr i64 kChunk = 8192;  // elements of a workgroup of the first launches

const auto max_of = [](const Value& a, const Value& b) { return kernel::max(a, b); };
const auto sum_of = [](const Value& a, const Value& b) { return a + b; };

// 2^-e for a number of 2^e .. 2^(e+1); at the ends of the range the nearest such normal number.
F32 downscale(const F32& x) {
  const U32 exponent = (kernel::bitcast<U32>(x) >> 23u) & 255u;
  const U32 held = kernel::min(kernel::max(exponent, U32(1u)), U32(253u));
  return kernel::bitcast<F32>((U32(254u) - held) << 23u);
}

// A chunk's largest magnitude, and the sum of squares scaled by it: partial[2 c], partial[2 c + 1].
kernel::Kernel chunk_kernel(const kernel::Target& target, u32 width) {
  return kernel::trace("gradient_norm", target, width, [] {
    const Buffer all = kernel::param_buffer(kernel::Scalar::F32),
                 partial = kernel::param_buffer(kernel::Scalar::F32);
    const kernel::U64 count = kernel::param_u64();
    const U32 first = kernel::param_u32(), group = kernel::group();
    const kernel::U64 begin = kernel::cast<kernel::U64>(group) * static_cast<u64>(kChunk);
    const Buffer x = matrix::shifted(all, begin);
    const U32 n = kernel::cast<U32>(kernel::min(count - begin, kernel::U64(u64{kChunk})));
    const Var<F32> largest(0.0f), sum(0.0f);
    matrix::for_lanes(U32(0u), n, -1, [&](const Value& i) {
      largest = kernel::max(*largest, kernel::abs(F32(x[i])));
    });
    const F32 most(kernel::group_reduce(*largest, max_of));
    const F32 down = downscale(most);
    matrix::for_lanes(U32(0u), n, -1, [&](const Value& i) {
      const F32 scaled = F32(x[i]) * down;
      sum = kernel::fma(scaled, scaled, *sum);
    });
    const Value total = kernel::group_reduce(*sum, sum_of);
    kernel::If(kernel::lane() == 0u, [&] {
      const U32 at = (first + group) * 2u;
      partial[at] = most;
      partial[at + 1u] = F32(total);
    });
  });
}

kernel::Kernel total_kernel(const kernel::Target& target, u32 chunks) {
  return kernel::trace("gradient_norm_total", target, target.width, [chunks] {
    const Buffer partial = kernel::param_buffer(kernel::Scalar::F32),
                 norm = kernel::param_buffer(kernel::Scalar::F32),
                 factors = kernel::param_buffer(kernel::Scalar::F32);
    const F32 most = kernel::param_f32();
    const Var<F32> largest(0.0f), sum(0.0f);
    matrix::for_lanes(U32(0u), U32(chunks), chunks, [&](const Value& c) {
      largest = kernel::max(*largest, F32(partial[U32(c) * 2u]));
    });
    const F32 peak(kernel::group_reduce(*largest, max_of));
    const F32 down = downscale(peak);
    matrix::for_lanes(U32(0u), U32(chunks), chunks, [&](const Value& c) {
      // Both are powers of two, so their quotient is exact.
      const F32 by = down / downscale(F32(partial[U32(c) * 2u]));
      sum = kernel::fma(F32(partial[U32(c) * 2u + 1u]) * by, by, *sum);
    });
    const F32 scaled = kernel::sqrt(F32(kernel::group_reduce(*sum, sum_of)));
    const F32 length = kernel::select(peak - peak == 0.0f, scaled / down, peak);
    const kernel::Bool clips = (length - length == 0.0f) & (length > most);
    kernel::If(kernel::lane() == 0u, [&] {
      norm[U32(0u)] = length;
      factors[U32(0u)] = kernel::select(clips, down, F32(1.0f));
      factors[U32(1u)] = kernel::select(clips, most / scaled, F32(1.0f));
    });
  });
}

}  // namespace

void GradientNorm::infer(Infer& in, const Attrs&) {
  for (u32 i = 0; i < in.count(); ++i) {
    if (in.dtype(i) != DType::F32) {
      in.reject("operand {} has the wrong dtype, got {}, expected f32", i, token(in.dtype(i)));
    }
  }
  in.out(DType::F32, {});
  in.out(DType::F32, {2});
}

void GradientNorm::lower(Lower& l, const Attrs&) {
  // A workgroup of one subgroup needs no workgroup memory, so that the launches run as one.
  const u32 width = l.target().is_cpu() ? l.target().width : l.target().subgroup;
  i64 chunks = 0;
  for (u32 i = 0; i < l.count(); ++i) {
    chunks += matrix::ceil_div(l.in(i).shape.elements(), kChunk);
  }
  graph::ArgRef partial = l.temp(static_cast<u64>(std::max<i64>(chunks, 1)) * 8);
  graph::ArgRef read = partial;
  read.write = false;
  partial.part = true;
  l.explain(
      fmt::format("{} chunks of {} elements, scaled by the largest of each so that squares "
                  "keep their range",
                  chunks, kChunk));
  i64 first = 0;
  for (u32 i = 0; i < l.count(); ++i) {
    const i64 n = l.in(i).shape.elements();
    if (n == 0) continue;
    const i64 own = matrix::ceil_div(n, kChunk);
    l.launch_mergeable(chunk_kernel(l.target(), width), own,
                       {l.input(i), partial, graph::ArgRef::number(static_cast<u64>(n)),
                        graph::ArgRef::number(static_cast<u64>(first))},
                       3 * static_cast<f64>(n));
    first += own;
  }
  l.explain(fmt::format("adds {} chunks in order", chunks));
  l.launch(total_kernel(l.target(), static_cast<u32>(chunks)), 1,
           {read, l.output(0), l.output(1), l.scalar(0)});
}

void GradientNorm::samples(Samples& s) {
  s.call({{{5, 7}}, {{41}}, {{}}, {{0}}}, Attrs{1});
  s.reject({{{3}}, {{3}, DType::F64}}, Attrs{1},
           "gradient_norm: operand 1 has the wrong dtype, got f64, expected f32");
}

}  // namespace oa::ml
