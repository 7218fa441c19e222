// Paths to texts: what is taken, in which order, what is skipped, and what is refused how.
#include "oa/ml/data/text_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/data/folder.h"

namespace oa::ml::data {
namespace {

namespace fs = std::filesystem;
using test::error_of;

class Texts : public test::InFolder {
 protected:
  std::vector<std::string> names(const TextFiles& files) const {
    std::vector<std::string> result;
    for (const auto& file : files.files())
      result.push_back(file.path.lexically_relative(dir_).string());
    return result;
  }
  std::string message(const fs::path& path, bool binary = false) const {
    const auto [kind, text] = error_of([&] { TextFiles::open(path, binary); });
    return (kind == ErrorKind::Io                ? "Io: "
            : kind == ErrorKind::InvalidArgument ? "Invalid: "
                                                 : "other: ") +
           shown(text);
  }
};

TEST_F(Texts, AFolderInTheOrderOfItsPaths) {
  put("b.txt", "B");
  put("a/z", "AZ");
  put("a.txt", "A");
  put("a/b/c", "ABC");
  put(".hidden", "no");
  put(".git/config", "no");
  put("a/.b", "no");
  put("empty", "");
  put("image.png", std::string_view("\x89PNG\0\0", 6));
  put("late", std::string(70'000, 'x') + std::string(1, '\0'));
  put("\xff\xfe", "odd name");
  fs::create_directories(dir_ / "nothing" / "here");
  fs::create_symlink(dir_ / "b.txt", dir_ / "link");
  fs::create_symlink(dir_, dir_ / "a" / "loop");
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);

  const TextFiles files = TextFiles::open(dir_);
  EXPECT_EQ(names(files), (std::vector<std::string>{"a.txt", "a/b/c", "a/z", "b.txt", "late",
                                                    "link", "\xff\xfe"}));
  EXPECT_EQ(files.bytes(), 1 + 3 + 2 + 1 + 70'001 + 1 + 8u);
  std::vector<std::string> skipped;
  for (const auto& s : files.skipped()) skipped.push_back(shown(s.path.string()) + " " + s.reason);
  std::sort(skipped.begin(), skipped.end());
  EXPECT_EQ(skipped, (std::vector<std::string>{
                         "DIR/a/loop is a link to no file", "DIR/empty is empty",
                         "DIR/image.png is binary: byte 4 is 0", "DIR/pipe is no file"}));
  const auto head = files.head(6);
  EXPECT_EQ(std::string(head.begin(), head.end()), "AABCAZ");
  EXPECT_EQ(files.head(~u64{0}).size(), files.bytes());
  EXPECT_EQ(files.head(0).size(), 0u);
  // A folder's name with a slash behind it is the same folder.
  EXPECT_EQ(TextFiles::open(dir_ / "").files().size(), 7u);
}

TEST_F(Texts, OneFile) {
  const auto path = put("text", "hello");
  const TextFiles files = TextFiles::open(path);
  EXPECT_EQ(files.bytes(), 5u);
  EXPECT_EQ(files.content(0).bytes().size(), 5u);
  EXPECT_EQ(TextFiles::open(put(".named", "hidden files are taken by name")).files().size(), 1u);
  const auto binary = put("binary", std::string_view("ab\0c", 4));
  EXPECT_EQ(message(binary),
            "Invalid: TextFiles: 'DIR/binary' is binary: byte 2 is 0, expected a text");
  EXPECT_EQ(TextFiles::open(binary, true).bytes(), 4u);
  EXPECT_EQ(TextFiles::open(put("latin", "caf\xe9")).bytes(), 4u);
}

TEST_F(Texts, WhatIsRefused) {
  EXPECT_EQ(message(dir_ / "absent"),
            "Io: TextFiles: cannot examine 'DIR/absent': No such file or directory");
  EXPECT_EQ(message(dir_),
            "Invalid: TextFiles: no text in the folder 'DIR', got 0 files that are none, expected "
            "at least one");
  EXPECT_EQ(message(put("empty", "")), "Invalid: TextFiles: 'DIR/empty' is empty, expected a text");
  EXPECT_EQ(message(put("empty", ""), true),
            "Invalid: TextFiles: 'DIR/empty' is empty, expected a text");
  EXPECT_EQ(message(dir_),
            "Invalid: TextFiles: no text in the folder 'DIR', got 1 files that are none (the first "
            "of them: "
            "'DIR/empty' is empty), expected at least one");
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(message(dir_ / "pipe"), "Io: MappedFile: cannot map 'DIR/pipe': No such device");
  fs::create_symlink(dir_ / "absent", dir_ / "broken");
  EXPECT_EQ(message(dir_), "Io: TextFiles: cannot follow 'DIR/broken': No such file or directory");
  EXPECT_EQ(message(fs::path()), "Io: TextFiles: cannot examine '': No such file or directory");
}

// Root may read everything, so root becomes nobody meanwhile.
class AsNobody {
 public:
  AsNobody() : id_(::geteuid()) { EXPECT_EQ(id_ == 0 ? ::seteuid(65534) : 0, 0); }
  ~AsNobody() { EXPECT_EQ(id_ == 0 ? ::seteuid(0) : 0, 0); }

 private:
  uid_t id_;
};

TEST_F(Texts, UnreadableIsNotSkipped) {
  put("good", "text");
  const auto bad = put("bad/file", "secret");
  fs::permissions(dir_, fs::perms::all);
  fs::permissions(bad.parent_path(), fs::perms::all);
  fs::permissions(bad, fs::perms::none);
  {
    const AsNobody nobody;
    EXPECT_EQ(message(dir_), "Io: MappedFile: cannot open 'DIR/bad/file': Permission denied");
  }
  fs::permissions(bad.parent_path(), fs::perms::none);
  {
    const AsNobody nobody;
    EXPECT_EQ(message(dir_), "Io: TextFiles: cannot read the folder 'DIR/bad': Permission denied");
    EXPECT_EQ(message(bad), "Io: TextFiles: cannot examine 'DIR/bad/file': Permission denied");
  }
  fs::permissions(bad.parent_path(), fs::perms::owner_all);
}

TEST_F(Texts, ChangesAreNoticed) {
  put("a", "one");
  put("b", "two");
  const TextFiles files = TextFiles::open(dir_);
  const Hash128 before = files.hash();
  EXPECT_EQ(TextFiles::open(dir_).hash(), before);
  put("b", "twO");
  EXPECT_NE(files.hash(), before);
  put("a", "onet");
  put("b", "wo");
  EXPECT_NE(TextFiles::open(dir_).hash(), before);  // the same bytes, cut otherwise
  const auto [kind, text] = error_of([&] { files.content(1); });
  EXPECT_EQ(kind, ErrorKind::Io);
  EXPECT_EQ(shown(text), "TextFiles: 'DIR/b' changed while it was in use, got 2 bytes, expected 3");
}

}  // namespace
}  // namespace oa::ml::data
