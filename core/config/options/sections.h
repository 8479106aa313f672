// The options of each section of the job file, one file a section. options.cpp calls these in the readers'
// order.
#pragma once

#include <vector>

#include "core/config/field.h"
#include "core/config/job_config.h"

namespace pptrain::config {

// Upper limits of single numbers, far above any real run; their products are checked in sizes.cpp.
inline constexpr double max_size = 1 << 24;
inline constexpr double max_ranks = 1 << 20;
inline constexpr double max_steps = 1e12;

void add_run(std::vector<Option>& options);
void add_model(std::vector<Option>& options);
void add_rope_scaling(std::vector<Option>& options);
void add_distributed(std::vector<Option>& options);
void add_train(std::vector<Option>& options);
void add_data(std::vector<Option>& options);
void add_chat(std::vector<Option>& options);
void add_optimizer(std::vector<Option>& options);
void add_lora(std::vector<Option>& options);
void add_lr_schedule(std::vector<Option>& options);
void add_checkpoint(std::vector<Option>& options);
void add_eval(std::vector<Option>& options);
void add_metrics(std::vector<Option>& options);
void add_profile(std::vector<Option>& options);

TableList data_source_tables();
TableList optimizer_groups();
TableList batch_steps();

}  // namespace pptrain::config
