#include "shim/rebind.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "shim/loaded_object.h"

namespace koila::shim {
namespace {

using Address = ElfW(Addr);

#if defined(__x86_64__)
bool is_function_reference(std::uint32_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64; }
#elif defined(__aarch64__)
bool is_function_reference(std::uint32_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT || type == R_AARCH64_ABS64; }
#endif

// What the dynamic linker knows of a library or of the program: its tables, as its dynamic section has them.
struct Object {
  Address base = 0;
  Address span = 0;  // bytes from the base to its end
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hash = nullptr;  // DT_GNU_HASH
  const ElfW(Rela) * tables[2] = {};    // DT_RELA, DT_JMPREL
  std::size_t entries[2] = {};
  bool binds_to_itself = false;         // -Bsymbolic
  Address sealed_begin = 0, sealed_end = 0;  // PT_GNU_RELRO: read-only since the library was loaded

  explicit Object(const dl_phdr_info& info) : base(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type == PT_LOAD && header.p_vaddr + header.p_memsz > span) span = header.p_vaddr + header.p_memsz;
      if (header.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base + header.p_vaddr));
      if (header.p_type == PT_GNU_RELRO) seal(base + header.p_vaddr, header.p_memsz);
    }
  }

  bool is_whole() const { return symbols != nullptr && names != nullptr; }
  const char* name_of(std::uint32_t symbol) const { return names + symbols[symbol].st_name; }

  // Another thread may be loading the library at this moment: it is listed before its references hold addresses, and then it will be bound by the linker. So is a reference
  // that nobody needs to define, and nobody has.
  bool is_bound(Address value) const { return value != 0 && (base == 0 || value >= span); }

  // The linker has bound it here, and no library that comes first would have changed that.
  bool is_own_for_good(std::uint32_t symbol) const {
    const auto& s = symbols[symbol];
    if (ELF64_ST_BIND(s.st_info) == STB_LOCAL) return true;
    return s.st_shndx != SHN_UNDEF && (binds_to_itself || ELF64_ST_VISIBILITY(s.st_other) != STV_DEFAULT);
  }

 private:
  // glibc has turned the addresses of the dynamic section into those of memory; others leave offsets there.
  template <class T>
  const T* at(Address value) const {
    return reinterpret_cast<const T*>(value < base ? base + value : value);
  }

  void read(const ElfW(Dyn) * dynamic) {
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
      const Address value = dynamic->d_un.d_ptr;
      switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = at<ElfW(Sym)>(value); break;
        case DT_STRTAB: names = at<char>(value); break;
        case DT_GNU_HASH: hash = at<std::uint32_t>(value); break;
        case DT_RELA: tables[0] = at<ElfW(Rela)>(value); break;
        case DT_RELASZ: entries[0] = value / sizeof(ElfW(Rela)); break;
        case DT_JMPREL: tables[1] = at<ElfW(Rela)>(value); break;
        case DT_PLTRELSZ: entries[1] = value / sizeof(ElfW(Rela)); break;
        case DT_SYMBOLIC: binds_to_itself = true; break;
        case DT_FLAGS: binds_to_itself = binds_to_itself || (value & DF_SYMBOLIC) != 0; break;
        default: break;
      }
    }
  }

  void seal(Address begin, std::size_t bytes) {
    const Address page = static_cast<Address>(sysconf(_SC_PAGESIZE));
    sealed_begin = begin & ~(page - 1);
    sealed_end = (begin + bytes) & ~(page - 1);  // the page that it ends in stays writable
  }
};

// What this library stands in for, by name.
class StandIns {
 public:
  explicit StandIns(const Object& own) {
    if (!own.is_whole() || own.hash == nullptr) return;
    // Only what is defined is in the table of hashes: symbols from `first` on.
    const std::uint32_t first = own.hash[1];
    const std::uint32_t count = defined(own);
    for (std::uint32_t i = first; i < count; ++i) {
      const auto& symbol = own.symbols[i];
      const std::string_view name = own.name_of(i);
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || name.starts_with("koila_") || name == "initModule") continue;
      functions_.emplace(name, own.base + symbol.st_value);
    }
  }

  Address find(const char* name) const {
    const auto found = functions_.find(name);
    return found != functions_.end() ? found->second : 0;
  }
  bool empty() const { return functions_.empty(); }

 private:
  // One more than the last symbol: the highest that a bucket begins with, and to the end of its chain.
  static std::uint32_t defined(const Object& own) {
    const std::uint32_t buckets = own.hash[0], first = own.hash[1], words = own.hash[2];
    const std::uint32_t* bucket = own.hash + 4 + words * (sizeof(Address) / sizeof(std::uint32_t));
    const std::uint32_t* chain = bucket + buckets;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
    if (last < first) return first;
    while ((chain[last - first] & 1) == 0) ++last;
    return last + 1;
  }

  std::unordered_map<std::string_view, Address> functions_;
};

// Writes into a library's tables, also where they were made read-only.
class Writer {
 public:
  explicit Writer(const Object& object) : object_(object) {}
  ~Writer() {
    if (open_) mprotect(reinterpret_cast<void*>(object_.sealed_begin), object_.sealed_end - object_.sealed_begin, PROT_READ);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool write(Address place, Address value) {
    if (place >= object_.sealed_begin && place < object_.sealed_end && !open_) {
      if (mprotect(reinterpret_cast<void*>(object_.sealed_begin), object_.sealed_end - object_.sealed_begin, PROT_READ | PROT_WRITE) != 0) return false;
      open_ = true;
    }
    __atomic_store_n(reinterpret_cast<Address*>(place), value, __ATOMIC_RELEASE);
    return true;
  }

 private:
  const Object& object_;
  bool open_ = false;
};

// The references that are bound to stand-ins now; -1 on failure.
std::ptrdiff_t rebind(const Object& object, const StandIns& stand_ins) {
  if (!object.is_whole()) return 0;
  Writer writer(object);
  std::ptrdiff_t bound = 0;
  for (int t = 0; t < 2; ++t) {
    for (std::size_t i = 0; object.tables[t] != nullptr && i < object.entries[t]; ++i) {
      const auto& entry = object.tables[t][i];
      const auto symbol = static_cast<std::uint32_t>(ELF64_R_SYM(entry.r_info));
      if (symbol == 0 || entry.r_addend != 0 || !is_function_reference(static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info)))) continue;
      const Address stand_in = stand_ins.find(object.name_of(symbol));
      if (stand_in == 0 || object.is_own_for_good(symbol)) continue;
      const Address place = object.base + entry.r_offset;
      const Address value = *reinterpret_cast<const Address*>(place);
      if (!object.is_bound(value)) continue;
      if (value != stand_in && !writer.write(place, stand_in)) return -1;
      ++bound;
    }
  }
  return bound;
}

const void* within_own() { return reinterpret_cast<const void*>(&rebind_loaded); }

dl_phdr_info own_info() {
  dl_phdr_info own = {};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        if (!holds(*info, within_own())) return 0;
        *static_cast<dl_phdr_info*>(data) = *info;
        return 1;
      },
      &own);
  return own;
}

}  // namespace

std::ptrdiff_t rebind_loaded() {
  static const StandIns stand_ins{Object(own_info())};
  if (stand_ins.empty()) return -1;
  std::ptrdiff_t all = 0;
  const int failed = dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        if (holds(*info, within_own())) return 0;
        const std::ptrdiff_t bound = rebind(Object(*info), stand_ins);
        if (bound < 0) return 1;
        *static_cast<std::ptrdiff_t*>(data) += bound;
        return 0;
      },
      &all);
  return failed != 0 ? -1 : all;
}

}  // namespace koila::shim
