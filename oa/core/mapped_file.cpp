// Through the POSIX calls.
#include "oa/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>

#include "oa/core/error.h"

namespace oa {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view what, int code) {
    fail(ErrorKind::Io, "MappedFile", "cannot {} '{}': {}", what, path.string(),
         std::generic_category().message(code));
  };
  // A pipe would block here, without a writer; it cannot be mapped anyway.
  int fd;
  do fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) refuse("open", errno);
  struct stat info;
  void* data = nullptr;
  int code = 0;
  if (::fstat(fd, &info) != 0) {
    code = errno;
  } else if (S_ISDIR(info.st_mode)) {
    code = EISDIR;
  } else if (!S_ISREG(info.st_mode)) {
    code = ENODEV;
  } else if (info.st_size > 0) {  // no bytes cannot be mapped
    data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) code = errno;
  }
  ::close(fd);
  if (code != 0) refuse("map", code);
  if (data) bytes_ = {static_cast<const u8*>(data), static_cast<size_t>(info.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<u8*>(bytes_.data()), bytes_.size());
}

}  // namespace oa
