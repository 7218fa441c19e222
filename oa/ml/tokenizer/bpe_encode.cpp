// See the header first.
#include "oa/ml/tokenizer/bpe_encode.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "oa/core/error.h"
#include "oa/ml/tokenizer/token_sequence.h"
#include "oa/ml/tokenizer/workers.h"

namespace oa::ml::tokenizer {

namespace {

// The search walks down at most this far at each place. Its tree has at most a node, 29 bytes while
// it is built, per byte of all texts; a small file must not ask for much memory.
constexpr u64 kLongest = 1024;
u64 most_text(u64 tokens) { return std::min(64 * tokens, u64{12} << 20); }

// Texts of several pieces are encoded on several threads. A piece begins so much earlier that the
// borders of its tokens agree with those of the piece before, as they do after some tokens.
constexpr u64 kPiece = u64{1} << 19;
constexpr u64 kOverlap = 2048;

// Below this the memory of answers is not worth its own initialisation.
constexpr size_t kWorthMemory = 4096;

u64 saturating_add(u64 a, u64 b) { return a + std::min(b, ~a); }

}  // namespace

// Whether two tokens are compatible, with a memory of recent answers.
class BpeEncoder::Compatible {
 public:
  Compatible(const BpeEncoder& encoder, bool with_memory)
      : encoder_(encoder), memory_(with_memory ? kSlots : 0, kFree) {}

  bool operator()(u32 left, u32 right) {
    if (memory_.empty()) return compute(left, right);
    // Ids are below 2^31, so the answer has a bit of its own.
    const u64 key = u64{left} << 33 | u64{right} << 1;
    u64& slot = memory_[(key * 0x9e3779b97f4a7c15ull) >> (64 - kSlotBits)];
    if ((slot & ~u64{1}) != key) slot = key | static_cast<u64>(compute(left, right));
    return slot & 1;
  }

 private:
  static constexpr u32 kSlotBits = 14;
  static constexpr size_t kSlots = size_t{1} << kSlotBits;
  static constexpr u64 kFree = ~u64{0};

  bool compute(u32 left, u32 right) const { return !encoder_.crosses(left, right, kNone, kNone); }

  const BpeEncoder& encoder_;
  std::vector<u64> memory_;
};

BpeEncoder::BpeEncoder(std::vector<BpeMerge> merges)
    : merges_(std::move(merges)), made_(merges_.size()) {
  lengths_.assign(256, 1);
  lengths_.reserve(tokens());
  u32 next = 256;
  for (const BpeMerge& m : merges_) {
    OA_CHECK(m.left < next && m.right < next);
    made_.insert(m.left, m.right, next++);  // a pair that is listed twice is gone the second time
    lengths_.push_back(saturating_add(lengths_[m.left], lengths_[m.right]));
  }
  build_trie();
}

// Whether the passes over the joined text of two tokens merge across their border before the left
// token becomes part of `left_end` and the right one of `right_end` (kNone: never). The tokens that
// stand at the border are the left one, its right part, the right part of that, and so on, and
// likewise on the other side; a token stands there from the pass that makes it to the one that
// makes the token it is a part of. Of the same pass, the merge further left comes first.
bool BpeEncoder::crosses(u32 left, u32 right, u32 left_end, u32 right_end) const {
  for (;;) {
    if (const u32* made = made_.find(left, right); made && *made < left_end && *made <= right_end)
      return true;
    if (left >= right) {
      if (left < 256) return false;
      left_end = left;
      left = merges_[left - 256].right;
    } else {
      if (right < 256) return false;
      right_end = right;
      right = merges_[right - 256].left;
    }
  }
}

void BpeEncoder::build_trie() {
  // The texts of the tokens that encoding can give: those whose own text becomes them again.
  struct Text {
    u64 begin = 0;
    u32 length = 0;  // 0: never given
  };
  std::vector<Text> texts(tokens());
  std::vector<u8> pool;
  for (u32 byte = 0; byte < 256; ++byte) {
    texts[byte] = {byte, 1};
    pool.push_back(static_cast<u8>(byte));
  }
  for (u32 token = 256; token < tokens(); ++token) {
    const auto [left, right] = merges_[token - 256];
    const Text a = texts[left], b = texts[right];
    if (a.length == 0 || b.length == 0) continue;
    const u64 length = u64{a.length} + b.length;
    if (length > kLongest) return;  // first, for it bounds the steps of crosses
    if (crosses(left, right, token, token)) continue;
    if (pool.size() + length > most_text(tokens())) return;
    texts[token] = {pool.size(), static_cast<u32>(length)};
    pool.resize(pool.size() + length);
    std::memcpy(&pool[texts[token].begin], &pool[a.begin], a.length);
    std::memcpy(&pool[texts[token].begin + a.length], &pool[b.begin], b.length);
  }

  std::vector<u32> sorted;
  for (u32 token = 0; token < tokens(); ++token)
    if (texts[token].length > 0) sorted.push_back(token);
  const auto text_of = [&](u32 token) {
    return std::string_view(reinterpret_cast<const char*>(&pool[texts[token].begin]),
                            texts[token].length);
  };
  std::sort(sorted.begin(), sorted.end(), [&](u32 a, u32 b) { return text_of(a) < text_of(b); });

  // Level by level; a node holds the tokens first .. last-1 of `sorted` that begin with its text.
  struct Range {
    u32 first, last, depth, longest;  // longest: the token of the node, or of the one above, ...
  };
  std::vector<Range> ranges{{0, static_cast<u32>(sorted.size()), 0, kNone}};
  nodes_.emplace_back();
  labels_.push_back(0);
  two_bytes_.assign(65536, 0);
  next_shorter_.assign(tokens(), kNone);
  for (size_t node = 0; node < ranges.size(); ++node) {
    Range range = ranges[node];
    if (range.depth == 2) {
      const std::string_view text = text_of(sorted[range.first]);
      two_bytes_[size_t{static_cast<u8>(text[0])} << 8 | static_cast<u8>(text[1])] =
          static_cast<u32>(node);
    }
    if (texts[sorted[range.first]].length == range.depth) {  // texts differ, so only the first can
      const u32 token = sorted[range.first++];
      nodes_[node].token = token;
      next_shorter_[token] = range.longest;
      range.longest = token;
    }
    nodes_[node].first_child = static_cast<u32>(ranges.size());
    while (range.first < range.last) {
      const char label = text_of(sorted[range.first])[range.depth];
      u32 last = range.first;
      while (last < range.last && text_of(sorted[last])[range.depth] == label) ++last;
      ranges.push_back({range.first, last, range.depth + 1, range.longest});
      nodes_.emplace_back();
      labels_.push_back(static_cast<u8>(label));
      ++nodes_[node].children;
      range.first = last;
    }
  }
  searchable_ = true;
}

u32 BpeEncoder::longest_match(const u8* text, const u8* end) const {
  u32 longest = text[0];
  if (end - text < 2) return longest;
  u32 node = two_bytes_[size_t{text[0]} << 8 | text[1]];
  if (node == 0) return longest;
  text += 2;
  for (;;) {
    const Node& at = nodes_[node];
    if (at.token != kNone) longest = at.token;
    if (text == end) return longest;
    const u8* labels = &labels_[at.first_child];
    u32 child = 0;
    while (child < at.children && labels[child] != *text) ++child;
    if (child == at.children) return longest;
    node = at.first_child + child;
    ++text;
  }
}

// Appends the tokens of `bytes`.
void BpeEncoder::search(std::span<const u8> bytes, std::vector<u32>& tokens) const {
  if (bytes.empty()) return;
  Compatible compatible(*this, bytes.size() >= kWorthMemory);
  const size_t before = tokens.size();
  const u8* at = bytes.data();
  const u8* const end = at + bytes.size();
  u32 token = longest_match(at, end);
  for (;;) {
    if (tokens.size() > before)
      while (token != kNone && !compatible(tokens.back(), token)) token = next_shorter_[token];
    if (token != kNone) {
      tokens.push_back(token);
      at += lengths_[token];
      if (at == end) return;
      token = longest_match(at, end);
    } else {
      OA_CHECK(tokens.size() > before);
      at -= lengths_[tokens.back()];
      token = next_shorter_[tokens.back()];
      tokens.pop_back();
    }
  }
}

bool BpeEncoder::encode_in_pieces(std::span<const u8> bytes, u64 piece, u64 overlap, u32 threads,
                                  std::vector<u32>& tokens) const {
  struct Piece {
    u64 begin;  // of the text it encodes, earlier than its own by the overlap
    std::vector<u32> tokens;
    size_t first = 0, last = 0;  // the tokens that are part of the result
    u64 at = 0;                  // where the first of them begins
  };
  const u64 count = std::max<u64>(1, bytes.size() / piece);  // the last one may be longer
  OA_CHECK(count <= ~u32{0} && overlap <= piece);
  std::vector<Piece> pieces(count);
  Workers workers(count == 1 ? 1 : threads);
  workers.for_each(static_cast<u32>(count), [&](u32 k) {
    Piece& p = pieces[k];
    p.begin = k == 0 ? 0 : k * piece - overlap;
    const u64 end = k + 1 == count ? bytes.size() : (k + 1) * piece;
    p.tokens.reserve((end - p.begin) / 3);
    search(bytes.subspan(p.begin, end - p.begin), p.tokens);
    p.last = p.tokens.size();
  });

  // Each piece joins the one before at a border that both have.
  for (u64 k = 1; k < count; ++k) {
    Piece& left = pieces[k - 1];
    Piece& right = pieces[k];
    // From the first token of the left one that reaches the right one's text.
    u64 a = k * piece;
    while (left.last > left.first && a > right.begin) a -= lengths_[left.tokens[--left.last]];
    u64 b = right.begin;
    for (;;) {
      if (a == b && left.last > left.first && right.first < right.tokens.size() &&
          !crosses(left.tokens[left.last - 1], right.tokens[right.first], kNone, kNone))
        break;
      if (a <= b) {
        if (a == k * piece) return false;
        a += lengths_[left.tokens[left.last++]];
      } else {
        if (right.first == right.tokens.size()) return false;
        b += lengths_[right.tokens[right.first++]];
      }
    }
  }

  std::vector<size_t> to(count + 1, tokens.size());
  for (u64 k = 0; k < count; ++k) to[k + 1] = to[k] + pieces[k].last - pieces[k].first;
  tokens.resize(to[count]);
  for (u64 k = 0; k < count; ++k) {
    Piece& p = pieces[k];
    std::copy(p.tokens.begin() + static_cast<std::ptrdiff_t>(p.first),
              p.tokens.begin() + static_cast<std::ptrdiff_t>(p.last),
              tokens.begin() + static_cast<std::ptrdiff_t>(to[k]));
    p.tokens = {};
  }
  return true;
}

template <class Pos>
std::vector<u32> BpeEncoder::replay(std::span<const u8> bytes) const {
  TokenSequence<u32, Pos> sequence(bytes);
  // A pair comes up in the one pass that makes its later token, so each list is ascending.
  std::vector<std::vector<Pos>> places(merges_.size());
  const auto note = [&](u32 left, u32 right, Pos place) {
    if (const u32* made = made_.find(left, right)) places[*made - 256].push_back(place);
  };
  for (size_t i = 0; i + 1 < bytes.size(); ++i) note(bytes[i], bytes[i + 1], static_cast<Pos>(i));
  std::vector<Pos> begins;
  for (u32 i = 0; i < merges_.size(); ++i) {
    const auto [left, right] = merges_[i];
    const u32 made = 256 + i;
    sequence.add_token(left, right);
    if (places[i].empty()) continue;
    begins.resize(places[i].size());
    begins.resize(sequence.replace(left, right, made, places[i], begins.data()));
    places[i] = {};
    sequence.each_neighbour(
        made, begins, [&](u32 id, Pos place) { note(id, made, place); },
        [&](u32 id, Pos place) { note(made, id, place); },
        [&](Pos place) { note(made, made, place); });
  }
  std::vector<u32> tokens;
  sequence.each_token([&](u32 id) { tokens.push_back(id); });
  return tokens;
}

std::vector<u32> BpeEncoder::encode_by_replay(std::span<const u8> bytes) const {
  return bytes.size() < 0xffffffff ? replay<u32>(bytes) : replay<u64>(bytes);
}

std::vector<u32> BpeEncoder::encode(std::span<const u8> bytes, u32 threads) const {
  if (!searchable_) return encode_by_replay(bytes);
  std::vector<u32> tokens;
  if (!encode_in_pieces(bytes, kPiece, kOverlap, threads, tokens)) search(bytes, tokens);
  return tokens;
}

}  // namespace oa::ml::tokenizer
