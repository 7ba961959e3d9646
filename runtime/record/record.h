// A run's record: a file of fixed layout (layout.h) that the process writes while it runs (writer.h), and that outlives it when it is killed.
//
// Where it lies: at KOILA_RECORD, else as PID.koila in record_folder(). There it is removed when the process ends by itself, so that what is left
// is of processes that run or were cut off; of these the latest kMaxRecords stay. A process that leaves by os._exit() runs no exit handler, as
// the children that Python's multiprocessing forks do: it looks cut off.
#ifndef KOILA_RUNTIME_RECORD_RECORD_H_
#define KOILA_RUNTIME_RECORD_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/report/data.h"

namespace koila {

constexpr std::size_t kMaxRecords = 16;

struct ReadRecord {
  std::optional<ReportData> data;
  std::string problem;  // one sentence with the path. With data: what of it is left out
};

// For any file, of any contents, and for one that is being written. `blocks` and `trace` are never in a record.
ReadRecord read_record(const std::string& path);

struct FoundRecord {
  std::string path;
  std::int64_t pid = 0;
  bool alive = false;
};

// "koila-" and the user's number, in TMPDIR or /tmp. Where that is somebody else's, or open to others: in XDG_RUNTIME_DIR or XDG_CACHE_HOME, or
// .koila-records in HOME, as far as these are the user's own.
std::string record_folder();
// What is wrong with the first of these; "" when nothing is, and then that is the one.
std::string record_folder_problem();

// Of record_folder(), the latest first.
std::vector<FoundRecord> find_records();

// Of a process, wherever it has it; "" when there is none.
std::string record_of(std::int64_t pid);

// Whose record it is; nothing when it is none.
struct RecordOwner {
  std::int64_t pid = 0;     // 0: cannot be told, for it is damaged or another koila's
  std::uint64_t birth = 0;  // see record/process.h
};
std::optional<RecordOwner> owner_of(const std::string& path);

// Makes record_folder() if it is not there. "" where there is one, which is the user's own and nobody else's to enter; else what is wrong with the first.
std::string prepare_record_folder();

// Removes what dead processes left there, but for the latest kMaxRecords.
void prune_records();

}  // namespace koila

#endif  // KOILA_RUNTIME_RECORD_RECORD_H_
