//! The rules as operators change them: the engine's port, carried out on the database.

use super::database_rules::DatabaseRules;
use crate::database::postgres::{Failure, rules};
use crate::engine::port::Later;
use crate::engine::rulebook::{
    Done, EditRefused, EditRequest, Revision, RuleBook, ShownRevisions, WrittenRule,
};

impl RuleBook for DatabaseRules {
    fn edit(&self, asked: EditRequest) -> Later<'_, Result<Done, EditRefused>> {
        Box::pin(async move {
            self.database.is_there().await.map_err(|failure| EditRefused::Away(failure.to_string()))?;
            if self.is_from_peer().await {
                // The database answers again, and its own set counts.
                self.look().await;
            }
            let in_force = self.in_force().await;
            let (dry_run, actor) = (asked.dry_run, asked.actor.name.clone());
            let regions = self.engine.regions().nameable();
            let done = rules::edit(&self.database, asked, &regions, in_force).await?;
            if !dry_run && !done.changes.is_empty() {
                tracing::info!(
                    revision = done.revision,
                    changes = done.changes.len(),
                    actor = %actor,
                    "rules changed by an operator"
                );
                // The one who asked may count on it when the answer comes.
                self.look().await;
            }
            Ok(done)
        })
    }

    fn history(&self, shown: ShownRevisions) -> Later<'_, Result<Vec<Revision>, EditRefused>> {
        Box::pin(async move {
            self.database.is_there().await.map_err(|failure| EditRefused::Away(failure.to_string()))?;
            rules::history(&self.database, &shown)
                .await
                .map_err(|failure| EditRefused::Away(failure.to_string()))
        })
    }

    fn written(&self, name: String) -> Later<'_, Result<WrittenRule, EditRefused>> {
        Box::pin(async move {
            let away = |failure: Failure| EditRefused::Away(failure.to_string());
            self.database.is_there().await.map_err(away)?;
            let (revision, rule) = rules::written(&self.database, &name).await.map_err(away)?;
            let rule = rule.ok_or(EditRefused::NoRule(name))?;
            Ok(WrittenRule { revision, rule })
        })
    }
}
