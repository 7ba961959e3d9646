#include "tool/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tool/files.h"

namespace koila::tool {
namespace {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return;
    struct stat status;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      void* at = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (at != MAP_FAILED) {
        data_ = static_cast<const char*>(at);
        size_ = static_cast<std::size_t>(status.st_size);
      }
    }
    close(file);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  std::size_t size() const { return size_; }

  template <class T>
  std::optional<T> at(std::uint64_t offset) const {
    if (size_ < sizeof(T) || offset > size_ - sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, data_ + offset, sizeof value);
    return value;
  }

  // The text up to its zero.
  std::string text(std::uint64_t offset) const {
    if (offset >= size_) return "";
    return std::string(data_ + offset, strnlen(data_ + offset, size_ - offset));
  }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

constexpr std::uint64_t kMaxEntries = 1 << 20;  // of a table of headers, in a file that may be anything

// The header of a file that can be read on from here: 64 bits, this machine's byte order.
std::optional<Elf64_Ehdr> header_of(const MappedFile& file) {
  const auto header = file.at<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) return std::nullopt;
  return header;
}

std::vector<Elf64_Phdr> segments_of(const MappedFile& file, const Elf64_Ehdr& header) {
  std::vector<Elf64_Phdr> segments;
  for (int i = 0; i < header.e_phnum; ++i)
    if (const auto segment = file.at<Elf64_Phdr>(header.e_phoff + static_cast<std::uint64_t>(i) * sizeof(Elf64_Phdr))) segments.push_back(*segment);
  return segments;
}

// Where in the file what is loaded at an address comes from.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& segments, std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  return std::nullopt;
}

void read_dynamic(const MappedFile& file, const std::vector<Elf64_Phdr>& segments, const Elf64_Phdr& dynamic, ElfFacts& facts) {
  std::vector<Elf64_Dyn> entries;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(dynamic.p_filesz / sizeof(Elf64_Dyn), kMaxEntries); ++i) {
    const auto entry = file.at<Elf64_Dyn>(dynamic.p_offset + i * sizeof(Elf64_Dyn));
    if (!entry || entry->d_tag == DT_NULL) break;
    entries.push_back(*entry);
  }
  const auto strings = std::find_if(entries.begin(), entries.end(), [](const Elf64_Dyn& e) { return e.d_tag == DT_STRTAB; });
  if (strings == entries.end()) return;
  const auto begin = offset_of(segments, strings->d_un.d_ptr);
  if (!begin) return;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NEEDED) facts.needed.push_back(file.text(*begin + entry.d_un.d_val));
    if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) facts.run_path = split(file.text(*begin + entry.d_un.d_val), ":");
  }
}

}  // namespace

std::optional<ElfFacts> read_elf(const std::string& path) {
  const MappedFile file(path);
  // The first fields are the same for 32 and for 64 bits.
  const auto start = file.at<Elf32_Ehdr>(0);
  if (!start || std::memcmp(start->e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
  ElfFacts facts;
  facts.bits = start->e_ident[EI_CLASS] == ELFCLASS32 ? 32 : 64;
  facts.machine = start->e_machine;
  const auto header = header_of(file);
  if (!header) return facts;
  const std::vector<Elf64_Phdr> segments = segments_of(file, *header);
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_INTERP) facts.loader = file.text(segment.p_offset);
    if (segment.p_type != PT_DYNAMIC) continue;
    facts.is_dynamic = true;
    read_dynamic(file, segments, segment, facts);
  }
  return facts;
}

bool defines_any(const std::string& path, const std::vector<std::string>& names, bool hidden) {
  const MappedFile file(path);
  const auto header = header_of(file);
  if (!header) return false;
  for (int i = 0; i < header->e_shnum; ++i) {
    const auto section = file.at<Elf64_Shdr>(header->e_shoff + static_cast<std::uint64_t>(i) * sizeof(Elf64_Shdr));
    if (!section || (section->sh_type != SHT_DYNSYM && !(hidden && section->sh_type == SHT_SYMTAB))) continue;
    const auto strings = file.at<Elf64_Shdr>(header->e_shoff + std::uint64_t{section->sh_link} * sizeof(Elf64_Shdr));
    if (!strings) continue;
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= section->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = file.at<Elf64_Sym>(section->sh_offset + at);
      if (!symbol) break;
      if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) continue;
      if (symbol->st_name >= strings->sh_size || strings->sh_offset >= file.size()) continue;
      const std::uint64_t offset = strings->sh_offset + symbol->st_name;
      if (offset >= file.size()) continue;
      const char* name = file.data() + offset;
      const std::size_t most = file.size() - offset;
      const auto is = [&](const std::string& other) { return most > other.size() && std::memcmp(name, other.c_str(), other.size() + 1) == 0; };
      if (std::any_of(names.begin(), names.end(), is)) return true;
    }
  }
  return false;
}

bool contains(const std::string& path, const std::string& bytes) {
  const MappedFile file(path);
  return file.size() > 0 && memmem(file.data(), file.size(), bytes.data(), bytes.size()) != nullptr;
}

}  // namespace koila::tool
