#include "oa/kernel/parse.h"

#include <bit>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "oa/core/error.h"
#include "oa/kernel/op_info.h"

namespace oa::kernel {
namespace {

struct Token {
  enum Kind : u8 { End, Word, Value, Text, Mark } kind = End;
  std::string_view text;  // of a value the digits after %, of a text the inside of the quotes
  int line = 0;
};

template <class... Args>
[[noreturn]] void bad(int line, fmt::format_string<Args...> text, Args&&... args) {
  invalid("kernel::parse", "line {}: {}", line, fmt::format(text, std::forward<Args>(args)...));
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Token next() {
    skip();
    const size_t start = at_;
    if (at_ == text_.size()) return {Token::End, "end of text", line_};
    const char c = text_[at_];
    if (c == '"') return quoted();
    if (c == '%') {
      ++at_;
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
      return {Token::Value, text_.substr(start + 1, at_ - start - 1), line_};
    }
    if (!is_word(c)) return {Token::Mark, text_.substr(at_++, 1), line_};
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return {Token::Word, text_.substr(start, at_ - start), line_};
  }

 private:
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == '+';
  }

  void skip() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
      } else if (c == ';') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        continue;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
      ++at_;
    }
  }

  Token quoted() {
    const size_t start = ++at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size() || text_[at_] != '"') bad(line_, "a text has no closing quote");
    return {Token::Text, text_.substr(start, at_++ - start), line_};
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text), token_(lexer_.next()) {}

  Kernel run() {
    expect("kernel");
    if (token_.kind != Token::Text) unexpected("the kernel's name in quotes");
    kernel_.name = unescape(take().text);
    expect("width"), kernel_.width = number<u32>();
    expect("subgroup"), kernel_.subgroup = number<u32>();
    expect("params"), kernel_.params = number<u32>();
    while (is("shared")) shared();
    while (is("var")) var();
    kernel_.body = region();
    if (token_.kind != Token::End) unexpected("the end of the text");
    return std::move(kernel_);
  }

 private:
  bool is(std::string_view text) const {
    return (token_.kind == Token::Word || token_.kind == Token::Mark) && token_.text == text;
  }

  Token take() {
    const Token t = token_;
    token_ = lexer_.next();
    return t;
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    bad(token_.line, "got `{}{}`, expected {}", token_.kind == Token::Value ? "%" : "", token_.text,
        expected);
  }

  void expect(std::string_view text) {
    if (!is(text)) unexpected(fmt::format("`{}`", text));
    take();
  }

  static std::string unescape(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\' && i + 1 < text.size()) {
        ++i;
        out += text[i] == 'n' ? '\n' : text[i];
      } else {
        out += text[i];
      }
    }
    return out;
  }

  template <class T>
  static std::optional<T> read(std::string_view text) {
    T value{};
    int base = 10;
    if constexpr (std::is_unsigned_v<T>) {
      if (text.starts_with("0x")) text.remove_prefix(2), base = 16;
    }
    std::from_chars_result r;
    if constexpr (std::is_floating_point_v<T>) {
      r = std::from_chars(text.data(), text.data() + text.size(), value);
    } else {
      r = std::from_chars(text.data(), text.data() + text.size(), value, base);
    }
    if (text.empty() || r.ec != std::errc() || r.ptr != text.data() + text.size()) return {};
    return value;
  }

  template <class T>
  T number() {
    if (token_.kind == Token::Word) {
      if (const auto x = read<T>(token_.text)) {
        take();
        return *x;
      }
    }
    unexpected("a number");
  }

  // `s3` or `v3`.
  std::optional<u32> slot_name(char letter) const {
    if (token_.kind != Token::Word || token_.text[0] != letter) return {};
    return read<u32>(token_.text.substr(1));
  }

  void declared(char letter, size_t expected) {
    if (slot_name(letter) != expected) unexpected(fmt::format("`{}{}`", letter, expected));
    take();
  }

  void shared() {
    expect("shared"), declared('s', kernel_.shared.size());
    SharedSlot s{};
    s.elem = scalar(take());
    expect("["), s.count = number<u32>(), expect("]");
    kernel_.shared.push_back(s);
  }

  void var() {
    expect("var"), declared('v', kernel_.vars.size());
    kernel_.vars.push_back({type()});
  }

  static std::optional<Scalar> scalar_named(std::string_view text) {
    for (int s = 0; s <= static_cast<int>(Scalar::F64); ++s) {
      if (text == name(static_cast<Scalar>(s))) return static_cast<Scalar>(s);
    }
    return {};
  }

  static Scalar scalar(const Token& t) {
    if (const auto s = scalar_named(t.text)) return *s;
    bad(t.line, "unknown type `{}`", t.text);
  }

  Type type() {
    const Token t = take();
    if (t.text.starts_with("frag_")) return fragment(t);
    if (const auto s = scalar_named(t.text)) return Type{*s};
    const size_t x = t.text.rfind('x');
    if (x != t.text.npos) {
      const auto s = scalar_named(t.text.substr(0, x));
      const auto lanes = read<u8>(t.text.substr(x + 1));
      if (s && lanes) return Type{*s, *lanes};
    }
    bad(t.line, "unknown type `{}`", t.text);
  }

  Type fragment(const Token& t) {
    Type type;
    if (t.text == "frag_a") type.use = FragUse::A;
    if (t.text == "frag_b") type.use = FragUse::B;
    if (t.text == "frag_c") type.use = FragUse::C;
    if (!type.is_fragment()) bad(t.line, "unknown type `{}`", t.text);
    expect("<"), type.scalar = scalar(take()), expect(",");
    const Token size = take();
    const size_t x = size.text.find('x');
    const auto rows = read<u8>(size.text.substr(0, x));
    const auto cols = x == size.text.npos ? std::nullopt : read<u8>(size.text.substr(x + 1));
    if (!rows || !cols) bad(size.line, "got `{}`, expected rows x columns", size.text);
    type.rows = *rows, type.cols = *cols;
    expect(">");
    return type;
  }

  Region region() {
    const int opened = token_.line;
    expect("{");
    Region r;
    while (!is("}")) {
      if (token_.kind == Token::End) bad(token_.line, "the `{{` of line {} is not closed", opened);
      r.push_back(instr());
    }
    take();
    return r;
  }

  ValueId instr() {
    std::optional<Token> result;
    if (token_.kind == Token::Value) {
      result = take();
      expect("=");
    }
    const Token word = token_;
    if (word.kind != Token::Word) unexpected("an instruction");
    take();
    const size_t dot = word.text.find('.');
    Instr i;
    i.op = op_named(word, word.text.substr(0, dot));
    const OpInfo& what = info(i.op);
    if (what.elem != (dot != word.text.npos)) {
      bad(word.line, "`{}` {} element type", name(i.op), what.elem ? "needs an" : "has no");
    }
    if (what.elem) i.elem = scalar({Token::Word, word.text.substr(dot + 1), word.line});
    if (yields_value(i.op) != result.has_value()) {
      bad(word.line, "`{}` yields {} value", name(i.op), result ? "no" : "a");
    }
    if (result) i.type = type();
    const char letter = what.slot == SlotUse::Var ? 'v' : 's';
    if (what.slot != SlotUse::None && token_.line == word.line) {
      if (const auto s = slot_name(letter)) i.slot = *s, take();
    }
    const bool no_hint = what.imm == ImmUse::Hint && token_.kind != Token::Word;
    if (what.imm != ImmUse::None && !no_hint) i.imm = imm(i.op, i.type.scalar);
    args(i, word.line);
    extras(i, word.line);
    // The value is known to its regions (a For's index), and to everything after.
    const auto id = static_cast<ValueId>(kernel_.instrs.size());
    if (result && !ids_.emplace(result->text, id).second) {
      bad(result->line, "%{} is defined twice", result->text);
    }
    const Op op = i.op;
    kernel_.instrs.push_back(std::move(i));
    if (what.regions) {
      std::vector<Region> regions;
      regions.push_back(region());
      if (op == Op::While) expect("do"), regions.push_back(region());
      if (op == Op::If) {
        regions.emplace_back();
        if (is("else")) take(), regions[1] = region();
      }
      kernel_.instrs[id].regions = std::move(regions);
    }
    return id;
  }

  static Op op_named(const Token& word, std::string_view text) {
    for (int o = 0; o <= static_cast<int>(Op::Yield); ++o) {
      if (text == name(static_cast<Op>(o))) return static_cast<Op>(o);
    }
    bad(word.line, "unknown instruction `{}`", text);
  }

  u64 imm(Op op, Scalar s) {
    const ImmUse use = info(op).imm;
    const std::string_view text = token_.text;
    const auto chosen = [&](u64 value) {
      take();
      return value;
    };
    if (use == ImmUse::Bits && !text.starts_with("0x")) return constant(s);
    if (use == ImmUse::Atomic) {
      for (u64 o = 0; o <= static_cast<u64>(AtomicOp::Exchange); ++o) {
        if (text == name(static_cast<AtomicOp>(o))) return chosen(o);
      }
    }
    if (use == ImmUse::Scope) {
      if (text == "shared") return chosen(kSharedMemory);
      if (text == "device") return chosen(kDeviceMemory);
      if (text == "shared+device") return chosen(kSharedMemory | kDeviceMemory);
    }
    if (use == ImmUse::Hint && text == hint_name(op)) return chosen(1);
    if (use == ImmUse::Layout && (text == "row" || text == "col")) return chosen(text == "col");
    return number<u64>();
  }

  u64 constant(Scalar s) {
    switch (s) {
      case Scalar::Bool: {
        if (!is("true") && !is("false")) unexpected("`true` or `false`");
        return take().text == "true";
      }
      case Scalar::I32: return static_cast<u32>(number<i32>());
      case Scalar::I64: return static_cast<u64>(number<i64>());
      case Scalar::U8: return number<u8>();
      case Scalar::U32: return number<u32>();
      case Scalar::F32: return std::bit_cast<u32>(number<f32>());
      case Scalar::F64: return std::bit_cast<u64>(number<f64>());
      default: return number<u64>();
    }
  }

  void args(Instr& i, int line) {
    while (token_.kind == Token::Value && token_.line == line) {
      const auto it = ids_.find(token_.text);
      if (it == ids_.end()) bad(line, "%{} is used before its definition", token_.text);
      i.args.push_back(it->second);
      take();
      if (!is(",") || token_.line != line) return;
      take();
      if (token_.kind != Token::Value) unexpected("an operand");
      line = token_.line;  // a list may go on after a comma
    }
  }

  // Fields that the instruction does not use, kept so that any kernel prints and parses.
  void extras(Instr& i, int line) {
    while (token_.line == line && (is("slot") || is("imm"))) {
      const bool slot = is("slot");
      take(), expect("=");
      if (slot) {
        i.slot = number<u32>();
      } else {
        i.imm = number<u64>();
      }
    }
  }

  Lexer lexer_;
  Token token_;
  Kernel kernel_;
  std::unordered_map<std::string_view, ValueId> ids_;
};

}  // namespace

Kernel parse(std::string_view text) { return Parser(text).run(); }

}  // namespace oa::kernel
