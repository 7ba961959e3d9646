// Writes the record of this process as things happen, so that a kill at any moment loses nothing that came before it.
//
// What the system does at a kill it also does after a crash, an abort, and when memory runs out for the whole machine: the file's pages are the
// kernel's. Only a machine that loses power loses them.
#ifndef KOILA_RUNTIME_RECORD_WRITER_H_
#define KOILA_RUNTIME_RECORD_WRITER_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/record/layout.h"
#include "runtime/report/data.h"
#include "runtime/run_clock.h"
#include "runtime/spin_lock.h"
#include "runtime/timeline.h"

namespace koila {

class RecordWriter {
 public:
  // Null and a problem where there can be none. `identity` gives pid, host, command, mode and torch_version. There is none over the record of a
  // process that is alive, nor over a file that is no record.
  static std::unique_ptr<RecordWriter> open(const std::string& path, const ReportData& identity, const RunClock& clock, std::string& problem);

  const std::string& path() const { return path_; }

  void identify(const ReportData& identity);

  // Each is for one thread at a time, under a lock of the caller's (Events has one). `index` is an entry's place in its list.
  void write_page(const EventList& events);
  void write_oom(std::size_t index, const OomEvent& event);
  void write_region(std::size_t index, const koila_region_event& event);
  void write_full_batch(const std::string& op, const FullBatchOp& entry);
  void write_note(std::size_t index, const std::string& note);
  // The run has come to its end by itself.
  void write_end(const EventList& events);

  // From here on thread-safe.
  void write_device(const DeviceFigures& figures);  // all but the timeline, holders and sizes
  void write_sizes(int device, const std::vector<std::int64_t>& sizes);
  void write_holders(int device, const std::vector<Holder>& holders);
  void write_sources(const std::vector<SourceFigures>& sources);
  void write_leaks(const std::vector<Leak>& leaks);
  void write_facts(const ProgramFacts& facts);

  // Null where there is no room for it.
  SeriesSink<Sample>* timeline_of(int device);
  SeriesSink<StepSample>* steps() { return &steps_; }

  // The file goes; what is written from now on is seen by nobody.
  void remove() { file_->remove(); }

 private:
  template <class T>
  class Sink final : public SeriesSink<T> {
   public:
    void open(record::File* file, record::SeriesOf<T>* series) {
      file_ = file;
      series_ = series;
    }
    void append(const T& entry) override;
    void replace(const T* entries, std::size_t count) override;
    void pending(const T* entries, std::size_t count) override;

   private:
    record::File* file_ = nullptr;
    record::SeriesOf<T>* series_ = nullptr;
  };

  RecordWriter(std::string path, std::unique_ptr<record::File> file, const RunClock& clock);
  void begin(const ReportData& identity);
  record::Section* section_of(int device);
  template <class T>
  bool has_room(const T& value) {
    return file_->has_room(&value, sizeof value);
  }
  // Null where nothing is to be written.
  template <class T>
  bool write(T& to, const auto& value) {
    if (!has_room(to)) return false;
    to.write(value);
    return true;
  }

  std::string path_;
  std::unique_ptr<record::File> file_;
  const RunClock& clock_;
  record::Base& base_;
  std::int64_t state_ = record::kAtWork;
  std::map<std::string, std::size_t> full_batch_;  // where each operator stands
  Sink<StepSample> steps_;
  SpinLock lock_;  // of what is thread-safe
  std::size_t sections_ = 0;
  std::atomic<record::Section*> section_[kPlaces] = {};
  Sink<Sample> timelines_[kPlaces];
};

}  // namespace koila

#endif  // KOILA_RUNTIME_RECORD_WRITER_H_
