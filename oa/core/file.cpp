// Files through the POSIX calls, because std::fstream reports no reason and cannot sync.
#include "oa/core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "oa/core/error.h"

namespace oa {

namespace fs = std::filesystem;

namespace {

std::string reason(int code) { return std::generic_category().message(code); }

[[noreturn]] void io_error(std::string_view op, std::string_view what, const fs::path& path,
                           int code) {
  fail(ErrorKind::Io, op, "cannot {} '{}': {}", what, path.string(), reason(code));
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Some file systems report a failed write only here.
  int close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do fd = ::open(path, flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

// Removes the temporary file unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const fs::path& target) {
    static std::atomic<u32> sequence{0};
    do {
      path_ = target;
      path_ += fmt::format(".tmp.{}.{}", ::getpid(), sequence.fetch_add(1));
      fd_ = open_retrying(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    } while (fd_ < 0 && errno == EEXIST);  // left by a dead process that had our id
    if (fd_ < 0) io_error("write_file", "create", path_, errno);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!renamed_) ::unlink(path_.c_str());
  }
  int fd() const { return fd_; }
  const fs::path& path() const { return path_; }
  void rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      io_error("write_file", "rename the new file to", target, errno);
    renamed_ = true;
  }

 private:
  fs::path path_;
  int fd_ = -1;
  bool renamed_ = false;
};

void write_all(int fd, std::span<const u8> bytes, const fs::path& path) {
  constexpr size_t kMaxWrite = size_t{1} << 30;  // one call takes less than 2 GiB
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (n < 0) {
      if (errno == EINTR) continue;
      io_error("write_file", "write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void sync_directory(const fs::path& directory) {
  Descriptor fd(open_retrying(directory.c_str(), O_RDONLY | O_DIRECTORY));
  if (!fd.valid()) io_error("write_file", "open the directory", directory, errno);
  // EINVAL: the file system has no notion of syncing a directory.
  if (::fsync(fd.get()) != 0 && errno != EINVAL)
    io_error("write_file", "sync the directory", directory, errno);
}

}  // namespace

std::vector<u8> read_file(const fs::path& path) {
  constexpr std::string_view op = "read_file";
  Descriptor fd(open_retrying(path.c_str(), O_RDONLY));
  if (!fd.valid()) io_error(op, "open", path, errno);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) io_error(op, "examine", path, errno);
  if (S_ISDIR(info.st_mode)) io_error(op, "read", path, EISDIR);

  // The size is only a first guess: the file may grow meanwhile, and pipes have none.
  std::vector<u8> bytes(static_cast<size_t>(info.st_size) + 1);
  size_t filled = 0;
  for (;;) {
    const ssize_t n = ::read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (n < 0) {
      if (errno == EINTR) continue;
      io_error(op, "read", path, errno);
    }
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled == bytes.size()) bytes.resize(2 * filled + 4096);
  }
  bytes.resize(filled);
  return bytes;
}

void write_file(const fs::path& path, std::span<const u8> bytes, Durability durability) {
  constexpr std::string_view op = "write_file";
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) io_error(op, "create the directory", parent, error.value());

  Temporary temporary(path);
  Descriptor fd(temporary.fd());
  write_all(fd.get(), bytes, temporary.path());
  if (durability == Durability::Disk && ::fsync(fd.get()) != 0)
    io_error(op, "sync", temporary.path(), errno);
  if (fd.close() != 0) io_error(op, "close", temporary.path(), errno);
  temporary.rename_to(path);
  if (durability == Durability::Disk) sync_directory(parent);
}

std::string prepare_directory(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const bool created = fs::create_directories(path, error);
    if (error) return fmt::format("cannot create '{}': {}", path.string(), error.message());
    if (created) ::chmod(path.c_str(), 0700);
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0)
    return fmt::format("cannot write into '{}': {}", path.string(), reason(errno));
  return {};
}

}  // namespace oa
