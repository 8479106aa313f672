// A page of memory that two processes of a host share, and waits for what the other one writes there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"

namespace pptrain::comm {

// The other process has failed, or a wait for it has been ended.
class LinkEnded : public Error {
 public:
  using Error::Error;
};

// Lies in a shared page.
class PageBell {
 public:
  // To be called after each change that the other process may wait for.
  void ring();
  // All waits throw from then on, in both processes.
  void fail();
  // Returns once `ready` is true, which is asked after each ring. Throws LinkEnded after fail(), and once
  // `ended` is true, which is asked ten times a second at least.
  void await(const std::function<bool()>& ready, const std::function<bool()>& ended);

 private:
  std::atomic<uint32_t> rings_ = 0;
  std::atomic<bool> failed_ = false;
};

// Names a page to other processes of this user on this host.
struct PageName {
  int32_t process = 0, descriptor = 0;
  uint64_t key = 0;  // is written in the page
};

// The memory goes with the last process that has it; it has no file.
class SharedPage {
 public:
  // Makes one that holds a T.
  template <typename T>
  static SharedPage make() {
    SharedPage page(sizeof(Content<T>));
    page.name_.key = (new (page.memory_.get()) Content<T>{.key = new_key()})->key;
    return page;
  }
  // Throws Error if it cannot be reached, as from another container.
  template <typename T>
  static SharedPage open(const PageName& name) {
    SharedPage page(name, sizeof(Content<T>));
    if (page.content<T>().key != name.key)
      throw Error("the other process's shared page is not to be reached");
    return page;
  }

  const PageName& name() const { return name_; }
  template <typename T>
  T& as() const {
    return content<T>().value;
  }

 private:
  template <typename T>
  struct Content {
    uint64_t key;
    T value{};
  };

  explicit SharedPage(size_t bytes);
  SharedPage(const PageName& name, size_t bytes);
  static uint64_t new_key();
  void map(const FileDescriptor& file, size_t bytes);
  template <typename T>
  Content<T>& content() const {
    return *std::launder(static_cast<Content<T>*>(memory_.get()));
  }

  PageName name_;
  FileDescriptor file_;  // of the process that made it
  std::shared_ptr<void> memory_;
};

}  // namespace pptrain::comm
