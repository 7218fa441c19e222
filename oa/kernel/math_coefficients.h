// Polynomial coefficients and split constants of math.cpp. Made by scripts/math/generate.py
// (minimax fits by Remez exchange in 160-bit arithmetic); do not edit. The number after a comment
// is the largest relative error of the fit in units of 2^-24 (f32) or 2^-53 (f64).
#pragma once

#include "oa/core/types.h"

namespace oa::kernel {

template <class T>
struct MathTables;

template <>
struct MathTables<f32> {
  // pi/2; subtracting n times the first three parts is exact for n < 2^16
  static constexpr f32 half_pi[] = {0x1.92p0f, 0x1.ep-12f, 0x1.b4p-16f, 0x1.4442d2p-24f,
                                    -0x1.ee59dap-50f};
  // ln(2); n times the first part is exact
  static constexpr f32 ln2[] = {0x1.62e4p-1f, 0x1.7f7d1cp-20f};
  // pi/2
  static constexpr f32 quarter_turn[] = {0x1.921fb6p0f, -0x1.777a5cp-25f};
  // log2(e)
  static constexpr f32 log2e[] = {0x1.715476p0f, 0x1.4ae0cp-26f};
  // 2/sqrt(pi)
  static constexpr f32 erf_slope[] = {0x1.20dd76p0f, -0x1.f7ac92p-25f};
  // 2 log2(e) for exact products
  static constexpr f32 two_log2e[] = {0x1.714p1f, 0x1.47652cp-11f};
  // 2/3 log2(e) for exact products
  static constexpr f32 two_log2e_3[] = {0x1.ec6p-1f, 0x1.09dc3ap-13f};
  // 2 e^r = 2 + 2r + r^2 P(r), |r| <= ln(2)/2: 0.0525
  static constexpr f32 exp[] = {0x1.fffffcp-1f, 0x1.555492p-2f, 0x1.5558aep-4f, 0x1.12398p-6f,
                                0x1.6a4e78p-9f};
  // 2^r = 1 + r P(r), |r| <= 1/2, and to 1 at the overflow edge: 0.0198
  static constexpr f32 exp2[] = {0x1.62e43p-1f,   0x1.ebfbep-3f,   0x1.c6b0b6p-5f, 0x1.3b2b3ap-7f,
                                 0x1.5d4e58p-10f, 0x1.4317e4p-13f, 0x1.2369eep-16f};
  // e^r - 1 = r + r^2 P(r), |r| <= ln(2)/2, and to ln(2) at the overflow edge: 0.0626
  static constexpr f32 expm1[] = {0x1.0p-1f,      0x1.555572p-3f,  0x1.5555bep-5f,
                                  0x1.10e7a2p-7f, 0x1.6c412ap-10f, 0x1.d7530ep-13f};
  // 1 - e^-r = r + r^2 P(r), |r| <= ln(2)/2: 0.229
  static constexpr f32 one_minus_exp[] = {-0x1.fffffep-2f, 0x1.5554b4p-3f, -0x1.5556f2p-5f,
                                          0x1.12254ap-7f, -0x1.6b9c6ap-10f};
  // log(1 + f) = f + f^2 (-1/2 + f P(f)), sqrt(1/2) <= 1 + f <= sqrt(2): 0.098
  static constexpr f32 log1p[] = {0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a01ep-3f, -0x1.54729p-3f,
                                  0x1.22d91p-3f,  -0x1.0d81e2p-3f, 0x1.055f08p-3f, -0x1.38cbe4p-4f};
  // log(1 + t) = t + t^2 P(t), 0 <= t <= 1: 0.0883
  static constexpr f32 log1p_unit[] = {-0x1.ffffd2p-2f, 0x1.554ddp-2f,  -0x1.ff23e6p-3f,
                                       0x1.934b54p-3f,  -0x1.3a436p-3f, 0x1.b4ae1ep-4f,
                                       -0x1.d6b0e4p-5f, 0x1.491866p-6f, -0x1.af4b4ep-9f};
  // log2((1 + s) / (1 - s)) = s (K + K s^2/3 + s^4 P(s^2)), K = 2 log2(e), s <= 0.1716: 0.000414
  static constexpr f32 log2_tail[] = {0x1.27770ep-1f, 0x1.a5bbfcp-2f, 0x1.59edb2p-2f};
  // sin(r) = r + r^3 P(r^2), |r| <= pi/4: 0.0697
  static constexpr f32 sin[] = {-0x1.555544p-3f, 0x1.1106c6p-7f, -0x1.991c26p-13f};
  // cos(r) = 1 + r^2 (-1/2 + r^2 P(r^2)), |r| <= pi/4: 0.00212
  static constexpr f32 cos[] = {0x1.55554ap-5f, -0x1.6c0c2p-10f, 0x1.99e42cp-16f};
  // -log(erfc(x)) = 2/sqrt(pi) x + x^2 P(x), 0 <= x <= 4: 0.00855
  static constexpr f32 erf[] = {0x1.45f308p-1f,   0x1.a4f3d8p-4f,   -0x1.394008p-6f,
                                -0x1.0566d2p-12f, 0x1.d65e78p-10f,  -0x1.8248bcp-11f,
                                0x1.5b96bp-13f,   -0x1.5f6752p-16f, 0x1.35be9p-20f};
};

template <>
struct MathTables<f64> {
  // pi/2; subtracting n times the first three parts is exact for n < 2^36
  static constexpr f64 half_pi[] = {0x1.921f8p0, 0x1.aa22p-19, 0x1.68cp-39, 0x1.1a62633145c07p-54,
                                    -0x1.f1976b7ed8fb8p-110};
  // ln(2); n times the first part is exact
  static constexpr f64 ln2[] = {0x1.62e42fefa3p-1, 0x1.3de6af278ece6p-42};
  // pi/2
  static constexpr f64 quarter_turn[] = {0x1.921fb54442d18p0, 0x1.1a62633145c07p-54};
  // log2(e)
  static constexpr f64 log2e[] = {0x1.71547652b82fep0, 0x1.777d0ffda0d24p-56};
  // 2/sqrt(pi)
  static constexpr f64 erf_slope[] = {0x1.20dd750429b6dp0, 0x1.1ae3a914fed8p-56};
  // 2 log2(e) for exact products
  static constexpr f64 two_log2e[] = {0x1.715476p1, 0x1.4ae0bf85ddf44p-25};
  // 2/3 log2(e) for exact products
  static constexpr f64 two_log2e_3[] = {0x1.ec709dp-1, 0x1.87407fae93f83p-26};
  // 2 e^r = 2 + 2r + r^2 P(r), |r| <= ln(2)/2: 0.0333
  static constexpr f64 exp[] = {0x1.000000000000ap0,   0x1.555555555550ap-2,  0x1.555555555076ep-4,
                                0x1.1111111124ca3p-6,  0x1.6c16c1844767bp-9,  0x1.a01a0136af067p-12,
                                0x1.a01999e0e69b7p-15, 0x1.71df0f2426478p-18, 0x1.28ad8ac6b5e85p-21,
                                0x1.ad9c998d28ddep-25};
  // 2^r = 1 + r P(r), |r| <= 1/2, and to 1 at the overflow edge: 0.0511
  static constexpr f64 exp2[] = {
      0x1.62e42fefa39fp-1,   0x1.ebfbdff82c597p-3,  0x1.c6b08d7049dd9p-5,  0x1.3b2ab6fba3b57p-7,
      0x1.5d87fe790fbbcp-10, 0x1.430912fab0ac6p-13, 0x1.ffcbfabb1a55bp-17, 0x1.62c02394e754cp-20,
      0x1.b52812d7414fp-24,  0x1.e4ada058455aap-28, 0x1.e58488830c2f5p-32, 0x1.076a186fc0324p-35};
  // e^r - 1 = r + r^2 P(r), |r| <= ln(2)/2, and to ln(2) at the overflow edge: 0.00454
  static constexpr f64 expm1[] = {0x1.0p-1,
                                  0x1.5555555555557p-3,
                                  0x1.5555555555506p-5,
                                  0x1.1111111110898p-7,
                                  0x1.6c16c16c39953p-10,
                                  0x1.a01a01a2a6ef5p-13,
                                  0x1.a01a00f3fa20fp-16,
                                  0x1.71de38785f542p-19,
                                  0x1.27e65db40056cp-22,
                                  0x1.ae51493dc6ca9p-26,
                                  0x1.1d16ed33d1a8dp-29,
                                  0x1.98c70bf157c34p-33};
  // 1 - e^-r = r + r^2 P(r), |r| <= ln(2)/2: 0.167
  static constexpr f64 one_minus_exp[] = {
      -0x1.0000000000005p-1,  0x1.555555555554ep-3,  -0x1.5555555552256p-5,  0x1.111111111515ap-7,
      -0x1.6c16c17ed1a62p-10, 0x1.a01a0185e7965p-13, -0x1.a019a7ad004fdp-16, 0x1.71de68f8cb707p-19,
      -0x1.28a19a20aba29p-22, 0x1.ae955b2c26957p-26};
  // log(1 + f) = f + f^2 (-1/2 + f P(f)), sqrt(1/2) <= 1 + f <= sqrt(2): 0.0128
  static constexpr f64 log1p[] = {
      0x1.555555555556bp-2, -0x1.ffffffffffe86p-3, 0x1.9999999994da9p-3, -0x1.555555556aabfp-3,
      0x1.249249275c95dp-3, -0x1.fffffff3e0d6p-4,  0x1.c71c702ed1874p-4, -0x1.99999a98fb50ep-4,
      0x1.745d58b2f205fp-4, -0x1.5555774734dabp-4, 0x1.3b0d7b7081f3bp-4, -0x1.248946a5b35e3p-4,
      0x1.1169dde39037ap-4, -0x1.00cfb697fc2bdp-4, 0x1.dc99b37df2e57p-5, -0x1.b45f5780be91dp-5,
      0x1.bba5d207ea688p-5, -0x1.010319c94b703p-4, 0x1.d2b8bd24692e8p-5, -0x1.8dd479c6131bp-6};
  // log(1 + t) = t + t^2 P(t), 0 <= t <= 1: 0.0853
  static constexpr f64 log1p_unit[] = {
      -0x1.fffffffffff9fp-2, 0x1.5555555551051p-2,  -0x1.fffffffdd49b8p-3,  0x1.99999951f9e67p-3,
      -0x1.55554fbe516ddp-3, 0x1.2491fed8f03a2p-3,  -0x1.fffa8bc1f90f2p-4,  0x1.c6f6a7e9168cdp-4,
      -0x1.98d2954cb9695p-4, 0x1.712df13fc5557p-4,  -0x1.4b0213ca31c6p-4,   0x1.202dd7c117a87p-4,
      -0x1.d711013d4302fp-5, 0x1.5a88c47deae78p-5,  -0x1.b631ba80fdc65p-6,  0x1.c57ddce2805d8p-7,
      -0x1.6b4d36232ce8ap-8, 0x1.a25a449848d08p-10, -0x1.31f754cd97589p-12, 0x1.a90417c069eddp-16};
  // log2((1 + s) / (1 - s)) = s (K + K s^2/3 + s^4 P(s^2)), K = 2 log2(e), s <= 0.1716: 2.01e-6
  static constexpr f64 log2_tail[] = {
      0x1.2776c50ef9bfcp-1, 0x1.a61762a7aeddcp-2, 0x1.484b13d6ad16cp-2, 0x1.0c9a853adad72p-2,
      0x1.c68ee96f08cf2p-3, 0x1.8a09b54ff7b4ap-3, 0x1.58fd023ac497dp-3, 0x1.61ef0853fed5dp-3};
  // sin(r) = r + r^3 P(r^2), |r| <= pi/4: 0.000837
  static constexpr f64 sin[] = {
      -0x1.5555555555555p-3,  0x1.111111111106ap-7, -0x1.a01a019ffea61p-13, 0x1.71de3a343ca33p-19,
      -0x1.ae642d46288f9p-26, 0x1.610a73b7b763p-33, -0x1.a063726941ac9p-41};
  // cos(r) = 1 + r^2 (-1/2 + r^2 P(r^2)), |r| <= pi/4: 1.58e-5
  static constexpr f64 cos[] = {
      0x1.5555555555555p-5,  -0x1.6c16c16c16b32p-10, 0x1.a01a019ffd375p-16, -0x1.27e4fb5adbf15p-22,
      0x1.1eed7084430acp-29, -0x1.9375a94492076p-37, 0x1.9e5b611908332p-45};
  // -log(erfc(x)) = 2/sqrt(pi) x + x^2 P(x), 0 <= x <= 6: 0.00632
  static constexpr f64 erf[] = {
      0x1.45f306dc9c884p-1,   0x1.a4f4e2a1b47edp-4,   -0x1.39668594dc37cp-6,
      -0x1.b6b684d5db648p-13, 0x1.bca6744439f56p-10,  -0x1.3564fa0b0228dp-11,
      0x1.b20103d23a858p-16,  0x1.0e9efb356171cp-14,  -0x1.f3c692b3da2acp-16,
      0x1.d8487ce8812cep-19,  0x1.684e0367c0827p-19,  -0x1.a800dcc33d55ap-20,
      0x1.a5ecd8107089ep-23,  0x1.f81636a656b65p-23,  -0x1.a6c6267f74cd5p-23,
      0x1.86acd1a3ad697p-24,  -0x1.0442e8c75a03cp-25, 0x1.0b201b77c450dp-27,
      -0x1.ae4f5b7da1513p-30, 0x1.0f50bb9532826p-32,  -0x1.07385a087cc1p-35,
      0x1.7be1a9ffb6492p-39,  -0x1.8031be2c51901p-43, 0x1.e5dd1bdec1f49p-48,
      -0x1.20f767e72c38ep-53};
};

}  // namespace oa::kernel
